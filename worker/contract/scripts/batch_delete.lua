-- Deletes a batch that is over with everything that is known of it; its files stay.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id stood (the name of the key that remembers where it stood) stood_ms
-- Returns the state it was in, or '' when there is no such batch.
local key, batch_id = batch_keys(), ARGV[1]
local state, tenant = unpack(redis.call('HMGET', key.batch, 'state', 'tenant'))
if not state or not OVER[state] then return state or '' end
redis.call('SET', ARGV[2], redis.call('HGET', key.batch, 'created_at'), 'PX', ARGV[3])
redis.call('ZREM', key.batches .. tenant, batch_id)
for _, name in ipairs(LASTING) do redis.call('UNLINK', key[name]) end
return state
