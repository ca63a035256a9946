-- Erases some of a tenant's kept answers on a shard; who asks for one just now will not keep it. To be called until
-- there are no more.
-- KEYS answer asking (their names but for the digest) answers
-- ARGV most
-- Returns how many answers were erased and how many entries are left.
local digests, erased = redis.call('ZRANGE', KEYS[3], 0, tonumber(ARGV[1]) - 1), 0
for _, digest in ipairs(digests) do
  erased = erased + redis.call('UNLINK', KEYS[1] .. digest)
  redis.call('UNLINK', KEYS[2] .. digest)
  redis.call('ZREM', KEYS[3], digest)
end
return { erased, redis.call('ZCARD', KEYS[3]) }
