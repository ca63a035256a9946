-- Ends the validation of a batch: its items are all stored and it is in progress, or it has failed.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id fence total errors ('' for none) ttl_ms wake_ms version ('' where no line continues a conversation)
-- Returns the state | '' when another has been given the step | 'missing' when items are gone.
local key, batch_id = batch_keys(), ARGV[1]
if redis.call('HGET', key.fences, batch_id .. '/-1') ~= ARGV[2] then return '' end
local state = redis.call('HGET', key.batch, 'state')
local good = state == 'validating' and ARGV[4] == ''
if good and redis.call('LLEN', key.items) ~= tonumber(ARGV[3]) then return 'missing' end

free_slice(key, batch_id, '-1')
redis.call('HDEL', key.batch, 'step', 'step_crashes', 'step_waits')
if not good then
  if ARGV[4] ~= '' then redis.call('HSET', key.batch, 'errors', ARGV[4]) end
  -- Of its lines none will ever be run.
  redis.call('UNLINK', key.items, key.rows, key.order)
  state = state == 'validating' and 'failed' or 'cancelled'
  end_batch(key, batch_id, state, ARGV[5])
  return state
end
if ARGV[7] ~= '' then redis.call('HSET', key.batch, 'turns', 1, 'version', ARGV[7]) end
local now, refused = now_ms(), redis.call('HLEN', key.rows)
for _, name in ipairs({ 'items', 'rows', 'talks', 'order' }) do redis.call('PERSIST', key[name]) end
redis.call('HSET', key.batch, 'state', 'in_progress', 'total', ARGV[3], 'failed', refused, 'started_at', int(now))
if redis.call('HEXISTS', key.batch, 'paused_at') == 1 then
  unlist_ready(key, batch_id)
else
  list_ready(key, batch_id, now + tonumber(ARGV[6]))
end
return go_on(key, batch_id, ARGV[5], ARGV[6])
