-- Ends a batch whose time is over: what runs of it still ends, and counts.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id ttl_ms wake_ms
-- Returns 1 when there is a step to wake a worker for, else 0.
local key, batch_id = batch_keys(), ARGV[1]
local state, expires_at = unpack(redis.call('HMGET', key.batch, 'state', 'expires_at'))
local now = now_ms()
if state == 'validating' then return 0 end
if state == 'in_progress' and tonumber(expires_at) > now then return 0 end
redis.call('ZREM', key.due, batch_id)
if state ~= 'in_progress' then return 0 end
redis.call('HSET', key.batch, 'state', 'finalizing', 'finalizing_at', int(now))
redis.call('HDEL', key.batch, 'paused_at')
unlist_ready(key, batch_id)
return go_on(key, batch_id, ARGV[2], ARGV[3]) == 'finalizing' and redis.call('HEXISTS', key.batch, 'step') or 0
