-- Keeps the summary that an attempt had made of what its turn is not shown word for word any more.
-- KEYS turn conv msgs history
-- ARGV fence summarized summary   (it stands for the first so many messages)
-- Returns 1, or 0 when the attempt no longer holds the turn.
local key = { turn = KEYS[1], conv = KEYS[2], msgs = KEYS[3], history = KEYS[4] }
local state, fence = unpack(redis.call('HMGET', key.turn, 'state', 'fence'))
if state ~= 'running' or fence ~= ARGV[1] then return 0 end
adopt(key)
local node = resolved(key, tonumber(redis.call('HGET', key.conv, 'head')))
keep_summary(key, node, ARGV[2], ARGV[3])
return 1
