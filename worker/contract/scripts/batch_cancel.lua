-- Cancels a batch: running items end, no further one begins.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id ttl_ms wake_ms
-- Returns the state it was in, or '' when there is no such batch, and 1 when there is a step to wake a worker for.
local key, batch_id = batch_keys(), ARGV[1]
local state = redis.call('HGET', key.batch, 'state')
if not state then return { '', 0 } end
if state ~= 'in_progress' and state ~= 'validating' then return { state, 0 } end
redis.call('HSET', key.batch, 'cancelled_at', int(now_ms()), 'state', 'cancelling')
redis.call('HDEL', key.batch, 'paused_at')
unlist_ready(key, batch_id)
redis.call('ZREM', key.due, batch_id)
if state == 'in_progress' then
  go_on(key, batch_id, ARGV[2], ARGV[3])
elseif redis.call('HEXISTS', key.slices, '-1') == 0 then
  redis.call('HDEL', key.batch, 'step')
  end_batch(key, batch_id, 'cancelled', ARGV[2])
end
return { state, redis.call('ZSCORE', key.ready, batch_id) and 1 or 0 }
