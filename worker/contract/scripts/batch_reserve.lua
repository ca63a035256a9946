-- Keeps a batch's id, which follows from an idempotency key, for the one body that came with the key first.
-- KEYS batch
-- ARGV digest ttl_ms
-- Returns 'reserved' | 'known' (the batch exists) | 'mismatch' (the key came with another body).
local known = redis.call('HMGET', KEYS[1], 'digest', 'state')
if known[1] and known[1] ~= ARGV[1] then return 'mismatch' end
if known[2] then return 'known' end
redis.call('HSET', KEYS[1], 'digest', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'reserved'
