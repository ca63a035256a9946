-- Puts wake-ups on a lane's queue, on the broker's server, in the form of Celery's messages.
-- KEYS queue
-- ARGV messages
-- Returns how many wait there.
local length = 0
for _, message in ipairs(ARGV) do length = redis.call('LPUSH', KEYS[1], message) end
return length
