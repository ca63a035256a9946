-- Puts a conversation's waiting turns into another order, if they still wait in the order that was seen. A repetition
-- finds them in the new one.
-- KEYS fifo
-- ARGV count, then the order that was seen, then the new one   (the same turns)
-- Returns 1, or 0 when the line has changed.
local count = tonumber(ARGV[1])
local seen, wanted = take(2, count), take(2 + count, count)
local line = redis.call('LRANGE', KEYS[1], 0, -1)
local standing = table.concat(line, ' ')
if standing == table.concat(wanted, ' ') then return 1 end
if standing ~= table.concat(seen, ' ') then return 0 end
redis.call('DEL', KEYS[1])
for _, turn_id in ipairs(wanted) do redis.call('RPUSH', KEYS[1], turn_id) end
return 1
