-- Deletes a file.
-- KEYS file pieces index due
-- ARGV file_id
-- Returns 1, or 0 when there was none.
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
return redis.call('DEL', KEYS[1], KEYS[2]) > 0 and 1 or 0
