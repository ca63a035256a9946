-- Deletes a file. Where it stood is remembered, for whoever reads the list from there.
-- KEYS file pieces index due stood
-- ARGV file_id stood_ms
-- Returns 1, or 0 when there was none.
local at = redis.call('ZSCORE', KEYS[3], ARGV[1])
if at then redis.call('SET', KEYS[5], int(tonumber(at)), 'PX', ARGV[2]) end
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
return redis.call('DEL', KEYS[1], KEYS[2]) > 0 and 1 or 0
