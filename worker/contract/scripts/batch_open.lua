-- Opens a batch whose items are all stored. Repeating the call changes nothing.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage
-- ARGV batch_id tenant version total window defaults wake_ms
-- Returns 1, or 0 when items are missing.
local key = batch_keys()
if redis.call('EXISTS', key.batch) == 1 then return 1 end
if redis.call('LLEN', key.items) ~= tonumber(ARGV[4]) then return 0 end
local now = now_ms()
redis.call('PERSIST', key.items)
redis.call('HSET', key.batch, 'tenant', ARGV[2], 'version', ARGV[3], 'state', 'in_progress', 'total', ARGV[4],
  'window', ARGV[5], 'defaults', ARGV[6], 'cursor', 0, 'running', 0, 'completed', 0, 'failed', 0,
  'fence', 0, 'created_at', int(now))
redis.call('ZADD', key.ready, int(now + tonumber(ARGV[7])), ARGV[1])
return 1
