-- A batch: its keys, its slices, and what becomes of it.

-- The keys that live and go with a batch.
local LASTING = { 'batch', 'items', 'rows', 'slices', 'redo', 'ledger', 'bad', 'again', 'order', 'parked', 'talks' }
-- The states in which nothing more happens to a batch.
local OVER = { completed = true, failed = true, expired = true, cancelled = true }
-- The numbers that the steps of a batch have instead of a first index.
local STEPS = { validate = -1, finalize = -2 }

-- The keys of a batch, likewise.
local function batch_keys()
  return { batch = KEYS[1], items = KEYS[2], rows = KEYS[3], slices = KEYS[4], redo = KEYS[5], ready = KEYS[6],
    wakes = KEYS[7], leases = KEYS[8], fences = KEYS[9], ledger = KEYS[10], totals = KEYS[11], usage = KEYS[12],
    due = KEYS[13], bad = KEYS[14], again = KEYS[15], order = KEYS[16], parked = KEYS[17], batches = KEYS[18],
    talks = KEYS[19] }
end

-- Writes down who holds a slice of a batch. `slices` says under its first index
-- `<count>:<crashes>:<token>`, and under `token:<token>` that index.
local function hold_slice(key, batch_id, start, counts, token, until_ms)
  local slice = batch_id .. '/' .. int(start)
  redis.call('HSET', key.slices, int(start), counts .. ':' .. token, 'token:' .. token, int(start))
  hold_lease(key, slice, redis.call('HINCRBY', key.batch, 'fence', 1), until_ms)
  redis.call('HINCRBY', key.batch, 'running', 1)
  redis.call('HDEL', key.wakes, batch_id)
end

-- Takes a slice from whoever holds it; returns how many of the batch still run.
local function free_slice(key, batch_id, start)
  local token = string.match(redis.call('HGET', key.slices, start), '%w+$')
  redis.call('HDEL', key.slices, start, 'token:' .. token)
  end_lease(key, batch_id .. '/' .. start)
  return redis.call('HINCRBY', key.batch, 'running', -1)
end

-- Puts the items of a slice that have no row into the list of what is to be done, each by itself.
local function keep_for_later(key, start, crashes)
  local count = tonumber(string.match(redis.call('HGET', key.slices, start), '^(%d+)'))
  for index = tonumber(start), tonumber(start) + count - 1 do
    if redis.call('HEXISTS', key.rows, int(index)) == 0 then
      redis.call('RPUSH', key.redo, int(index) .. ':1:' .. crashes)
    end
  end
end

-- Lets a batch's time be over then.
local function expire_at(key, batch_id, at)
  redis.call('HSET', key.batch, 'expires_at', int(at))
  redis.call('ZADD', key.due, int(at), batch_id)
end

-- Ends a batch and lets its keys expire.
local function end_batch(key, batch_id, state, ttl_ms)
  redis.call('HSET', key.batch, 'state', state, 'finished_at', int(now_ms()))
  redis.call('HDEL', key.batch, 'step', 'step_crashes', 'step_waits', 'ends_as', 'paused_at', 'waits_until', 'left')
  unlist_ready(key, batch_id)
  redis.call('ZREM', key.due, batch_id)
  for _, name in ipairs(LASTING) do redis.call('PEXPIRE', key[name], ttl_ms) end
end

-- What becomes of a batch now that a row or a slice is in: it goes on; or it ends; or, where it came as a file, the
-- files of its results are to be written. Returns its state.
local function go_on(key, batch_id, ttl_ms, wake_ms)
  local state, total, completed, failed, running, step, input_file = unpack(redis.call('HMGET', key.batch, 'state', 'total',
    'completed', 'failed', 'running', 'step', 'input_file'))
  local idle = tonumber(running) == 0
  if step or OVER[state] then return state end
  local done = tonumber(completed) + tonumber(failed) == tonumber(total) and redis.call('EXISTS', key.again) == 0
  local ends_as
  if state == 'in_progress' and done then
    ends_as = 'completed'
  elseif state == 'cancelling' and (done or idle) then
    ends_as = 'cancelled'
  elseif state == 'finalizing' and idle then
    ends_as = 'expired'
  else
    return state
  end
  if not input_file then
    end_batch(key, batch_id, ends_as, ttl_ms)
    return ends_as
  end
  local now = now_ms()
  if ends_as == 'completed' then
    state = 'finalizing'
    redis.call('HSET', key.batch, 'state', state, 'finalizing_at', int(now))
    redis.call('ZREM', key.due, batch_id)
  end
  redis.call('HSET', key.batch, 'step', 'finalize', 'ends_as', ends_as)
  list_ready(key, batch_id, now + tonumber(wake_ms))
  return state
end
