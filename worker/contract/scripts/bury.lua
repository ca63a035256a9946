-- Takes a turn from the dead letters.
-- KEYS dead
-- ARGV turn_id
-- Returns 1, or 0 when it is none.
return redis.call('ZREM', KEYS[1], ARGV[1])
