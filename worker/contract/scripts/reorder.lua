-- Puts a conversation's waiting turns into another order, if they still wait in the order that was seen.
-- KEYS fifo
-- ARGV count, then the order that was seen, then the new one   (the same turns)
-- Returns 1, or 0 when the line has changed.
local count = tonumber(ARGV[1])
local seen, wanted = take(2, count), take(2 + count, count)
local line = redis.call('LRANGE', KEYS[1], 0, -1)
if #line ~= count then return 0 end
for index, turn_id in ipairs(line) do
  if seen[index] ~= turn_id then return 0 end
end
redis.call('DEL', KEYS[1])
for _, turn_id in ipairs(wanted) do redis.call('RPUSH', KEYS[1], turn_id) end
return 1
