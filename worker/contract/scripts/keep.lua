-- Keeps what a running turn's tools have done, for the attempt that may come after this one.
-- KEYS turn
-- ARGV fence paused left   (left: the messages, one a line, that stay of the turn if it is cancelled while it waits)
-- Returns 1, or 0 when the attempt no longer holds the turn.
local state, fence = unpack(redis.call('HMGET', KEYS[1], 'state', 'fence'))
if state ~= 'running' or fence ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'paused', ARGV[2], 'left', ARGV[3])
redis.call('HDEL', KEYS[1], 'answered')
return 1
