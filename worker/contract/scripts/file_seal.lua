-- Makes a file of its pieces: from then on it can be read. Repeating the call changes nothing.
-- KEYS file pieces index due
-- ARGV file_id pieces ttl_ms (0: for ever) place ('' for Redis) field, value, …
-- Returns { created_at, expires_at or '' }, or {} when pieces are missing.
local file_id, lives_ms, place = ARGV[1], tonumber(ARGV[3]), ARGV[4]
local created_at, until_ms = unpack(redis.call('HMGET', KEYS[1], 'created_at', 'expires_at'))
if created_at then return { created_at, until_ms or '' } end
if place == '' and redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[2]) then return {} end

local now = now_ms()
redis.call('HSET', KEYS[1], 'place', place, 'pieces', ARGV[2], 'created_at', int(now), unpack(ARGV, 5))
redis.call('ZADD', KEYS[3], int(now), file_id)
if lives_ms <= 0 then
  redis.call('PERSIST', KEYS[2])
  redis.call('ZREM', KEYS[4], file_id)
  return { int(now), '' }
end
local expires_at = int(now + lives_ms)
redis.call('HSET', KEYS[1], 'expires_at', expires_at)
if place == '' then
  redis.call('PEXPIREAT', KEYS[1], expires_at)
  redis.call('PEXPIREAT', KEYS[2], expires_at)
else
  redis.call('ZADD', KEYS[4], expires_at, file_id)
end
return { int(now), expires_at }
