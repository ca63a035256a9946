-- Says that a worker is alive; forgets those that were not heard of.
-- KEYS workers
-- ARGV worker alive_ms
-- Returns how many are alive.
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(now))
redis.call('ZADD', KEYS[1], int(now + tonumber(ARGV[2])), ARGV[1])
redis.call('PEXPIRE', KEYS[1], 60000)
return redis.call('ZCARD', KEYS[1])
