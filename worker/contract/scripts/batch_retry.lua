-- Lets a batch that is over run again what has failed in it, or was never run. A row that is there stays until its
-- item is given to a worker.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id runs (how often it was run so far) window_ms ('' for none) wake_ms
-- Returns 'ok' | 'nothing' (all items have answers) | the state that does not allow it.
local key, batch_id = batch_keys(), ARGV[1]
local record = redis.call('HMGET', key.batch, 'state', 'runs', 'cursor', 'total', 'completed', 'failed')
local runs = tonumber(record[2] or 1)
if runs == tonumber(ARGV[2]) + 1 then return 'ok' end
if record[1] ~= 'completed' and record[1] ~= 'expired' and record[1] ~= 'cancelled' then return record[1] end
for _, waiting in ipairs(redis.call('HVALS', key.parked)) do
  local index = string.match(waiting, '^(%d+)[=>]')
  if index then redis.call('RPUSH', key.redo, index .. ':1:0') end
end
redis.call('DEL', key.parked)
local open = redis.call('LLEN', key.redo) + tonumber(record[4]) - tonumber(record[3])
local known = tonumber(record[5]) + tonumber(record[6]) == tonumber(record[4])
if (open == 0 or known) and redis.call('LLEN', key.bad) == 0 then return 'nothing' end

local now = now_ms()
if redis.call('EXISTS', key.bad) == 1 then redis.call('RENAME', key.bad, key.again) end
for _, name in ipairs(LASTING) do redis.call('PERSIST', key[name]) end
redis.call('HSET', key.batch, 'state', 'in_progress', 'runs', runs + 1)
redis.call('HDEL', key.batch, 'finished_at', 'finalizing_at', 'cancelled_at', 'output_file', 'error_file', 'ends_as')
if ARGV[3] ~= '' then
  local expires_at = int(now + tonumber(ARGV[3]))
  redis.call('HSET', key.batch, 'expires_at', expires_at)
  redis.call('ZADD', key.due, expires_at, batch_id)
end
redis.call('ZADD', key.ready, int(now + tonumber(ARGV[4])), batch_id)
return 'ok'
