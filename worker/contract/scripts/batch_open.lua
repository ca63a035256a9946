-- Opens a batch: one whose items are all stored is in progress, one that comes as a file is validated first.
-- Repeating the call changes nothing.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id tenant state total window_ms ('' for none) wake_ms, then field, value, … of the record
-- Returns 1, or 0 when items are missing.
local key, batch_id, state = batch_keys(), ARGV[1], ARGV[3]
if redis.call('HEXISTS', key.batch, 'state') == 1 then return 1 end
if state == 'in_progress' and redis.call('LLEN', key.items) ~= tonumber(ARGV[4]) then return 0 end
local now = now_ms()
for _, name in ipairs({ 'batch', 'items', 'rows', 'talks', 'order' }) do redis.call('PERSIST', key[name]) end
redis.call('HSET', key.batch, 'tenant', ARGV[2], 'state', state, 'total', ARGV[4], 'cursor', 0, 'running', 0,
  'completed', 0, 'failed', 0, 'fence', 0, 'created_at', int(now), unpack(ARGV, 7))
if state == 'validating' then redis.call('HSET', key.batch, 'step', 'validate') end
if ARGV[5] ~= '' then expire_at(key, batch_id, now + tonumber(ARGV[5])) end
redis.call('ZADD', key.batches .. ARGV[2], int(now), batch_id)
list_ready(key, batch_id, now + tonumber(ARGV[6]))
return 1
