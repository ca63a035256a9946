-- Puts wake-ups on a lane's queue, on the broker's server, in the form of Celery's messages. What would make the queue
-- longer than `longest` is left out: as many workers as can help are woken already, and each asks whose turn it is.
-- KEYS queue
-- ARGV longest (0 for any length) messages
-- Returns how many wait there.
local length, longest = redis.call('LLEN', KEYS[1]), tonumber(ARGV[1])
for index = 2, #ARGV do
  if longest > 0 and length >= longest then break end
  length = redis.call('LPUSH', KEYS[1], ARGV[index])
end
return length
