-- Keeps what a running turn's tools have done, for the attempt that may come after this one.
-- KEYS turn
-- ARGV fence paused
-- Returns 1, or 0 when the attempt no longer holds the turn.
local record = redis.call('HMGET', KEYS[1], 'state', 'fence')
if record[1] ~= 'running' or record[2] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'paused', ARGV[2])
redis.call('HDEL', KEYS[1], 'answered')
return 1
