-- Keeps a batch's id, which follows from an idempotency key, for the one body that came with the key first.
-- KEYS batch
-- ARGV digest ttl_ms
-- Returns 'reserved' | 'known' (the batch exists) | 'mismatch' (the key came with another body).
local digest, state = unpack(redis.call('HMGET', KEYS[1], 'digest', 'state'))
if digest and digest ~= ARGV[1] then return 'mismatch' end
if state then return 'known' end
redis.call('HSET', KEYS[1], 'digest', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'reserved'
