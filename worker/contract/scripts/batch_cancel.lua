-- Cancels a batch: running items end, no further one begins.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage
-- ARGV batch_id ttl_ms
-- Returns the state, or '' when there is no such batch.
local key = batch_keys()
local record = redis.call('HMGET', key.batch, 'state', 'running')
if not record[1] then return '' end
if record[1] ~= 'in_progress' then return record[1] end
redis.call('HSET', key.batch, 'cancelled_at', int(now_ms()), 'state', 'cancelling')
redis.call('ZREM', key.ready, ARGV[1])
redis.call('HDEL', key.wakes, ARGV[1])
if tonumber(record[2]) > 0 then return 'cancelling' end
end_batch(key, ARGV[1], 'cancelled', ARGV[2])
return 'cancelled'
