-- Ends the validation of a batch: its items are all stored and it is in progress, or it has failed.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id fence total errors ('' for none) ttl_ms wake_ms version ('' where no line continues a conversation)
-- Returns the state | '' when another has been given the step | 'missing' when items are gone.
local key, batch_id = batch_keys(), ARGV[1]
if redis.call('HGET', key.fences, batch_id .. '/-1') ~= ARGV[2] then return '' end
local record = redis.call('HMGET', key.batch, 'state')
local good = record[1] == 'validating' and ARGV[4] == ''
if good and redis.call('LLEN', key.items) ~= tonumber(ARGV[3]) then return 'missing' end

free_slice(key, batch_id, '-1')
redis.call('HDEL', key.batch, 'step')
if not good then
  if ARGV[4] ~= '' then redis.call('HSET', key.batch, 'errors', ARGV[4]) end
  local state = record[1] == 'validating' and 'failed' or 'cancelled'
  end_batch(key, batch_id, state, ARGV[5])
  return state
end
if ARGV[7] ~= '' then redis.call('HSET', key.batch, 'turns', 1, 'version', ARGV[7]) end
local now, refused = now_ms(), redis.call('HLEN', key.rows)
for _, name in ipairs({ 'items', 'rows', 'talks' }) do redis.call('PERSIST', key[name]) end
redis.call('HSET', key.batch, 'state', 'in_progress', 'total', ARGV[3], 'failed', refused, 'started_at', int(now))
redis.call('ZADD', key.ready, int(now + tonumber(ARGV[6])), batch_id)
return go_on(key, batch_id, ARGV[5], ARGV[6])
