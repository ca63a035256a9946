-- Lets a batch that is over run again what has failed in it, or was never run. A row that is there stays until its
-- item is given to a worker.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id runs (how often it was run so far) window_ms ('' for none) wake_ms
-- Returns 'ok' | 'nothing' (all items have answers) | the state that does not allow it.
local key, batch_id = batch_keys(), ARGV[1]
local state, runs, cursor, total, completed, failed = unpack(redis.call('HMGET', key.batch, 'state', 'runs',
  'cursor', 'total', 'completed', 'failed'))
runs = tonumber(runs or 1)
if runs == tonumber(ARGV[2]) + 1 then return 'ok' end
if state ~= 'completed' and state ~= 'expired' and state ~= 'cancelled' then return state end
for _, waiting in ipairs(redis.call('HVALS', key.parked)) do
  local index = string.match(waiting, '^(%d+)[=>]')
  if index then redis.call('RPUSH', key.redo, index .. ':1:0') end
end
redis.call('DEL', key.parked)
local open = redis.call('LLEN', key.redo) + tonumber(total) - tonumber(cursor)
local known = tonumber(completed) + tonumber(failed) == tonumber(total)
if (open == 0 or known) and redis.call('LLEN', key.bad) == 0 then return 'nothing' end

local now = now_ms()
if redis.call('EXISTS', key.bad) == 1 then redis.call('RENAME', key.bad, key.again) end
for _, name in ipairs(LASTING) do redis.call('PERSIST', key[name]) end
redis.call('HSET', key.batch, 'state', 'in_progress', 'runs', runs + 1)
redis.call('HDEL', key.batch, 'finished_at', 'finalizing_at', 'cancelled_at', 'output_file', 'error_file', 'ends_as')
if ARGV[3] ~= '' then expire_at(key, batch_id, now + tonumber(ARGV[3])) end
list_ready(key, batch_id, now + tonumber(ARGV[4]))
return 'ok'
