-- Gives the next slice of a batch to a worker: as many items as take a second or a little more, at most ten, so that others
-- get a slot soon; or one of the steps that come before and after all items, which are `-1` and `-2` and have none.
-- Repeating the call with the same token gives the same slice.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id lease_ms max_version suspect_after token call_row
-- Call ids are `<batch>.<token>.<index>.1`; call_row holds `CALL` where the id belongs.
-- Returns { 'claimed', start, count, fence, suspect, now, created_at, defaults, { index, item, … },
--        tenant, how often the one item of a batch with conversations was retried, attempt,
--        the name of the API key that posted the batch or '' }
--      or { 'gone' } | { 'newer' } | { 'refused', why }; after 'looking' there is more to look through at once.
-- A slice that was in `suspect_after` crashes is a suspect: the worker runs it in a process of its own.
local key, batch_id, token = batch_keys(), ARGV[1], ARGV[5]
local state, version, tenant, created_at, defaults, talks, api_key = unpack(redis.call('HMGET', key.batch, 'state', 'version',
  'tenant', 'created_at', 'defaults', 'turns', 'api_key'))
local total, reached, running, window, item_ms, paused_at, waits_until = unpack(redis.call('HMGET', key.batch, 'total',
  'cursor', 'running', 'window', 'item_ms', 'paused_at', 'waits_until'))
local step, step_crashes, step_waits = unpack(redis.call('HMGET', key.batch, 'step', 'step_crashes', 'step_waits'))
if not state then return { 'gone' } end
if tonumber(version) > tonumber(ARGV[3]) then return { 'newer' } end

local LOOKED_AT = 1000 -- how many items one call looks through at most
local now = now_ms()
total, window = tonumber(total), tonumber(window)

-- Where the next new slice begins, past the rows that are known from the start.
local function next_new()
  local cursor = tonumber(reached)
  local limit = math.min(total, cursor + LOOKED_AT)
  while cursor < limit and redis.call('HEXISTS', key.rows, int(cursor)) == 1 do cursor = cursor + 1 end
  return cursor
end

-- The next item that failed and is run again, which takes its row out; nothing when there is none.
local function next_again()
  local index = redis.call('LPOP', key.again)
  if not index then return end
  redis.call('HDEL', key.rows, index)
  redis.call('HINCRBY', key.batch, 'failed', -1)
  redis.call('HINCRBY', key.slices, 'try:' .. index, 1)
  return index
end

-- The first index of the next slice of a batch without conversations, its size and its crashes; or nil, and why.
local function next_slice()
  local entry = redis.call('LPOP', key.redo)
  if entry then
    local first, size, died = string.match(entry, '^(%d+):(%d+):(%d+)')
    return tonumber(first), tonumber(size), tonumber(died)
  end
  local again = next_again()
  if again then return tonumber(again), 1, 0 end
  local first = next_new()
  local remaining = total - first
  if remaining <= 0 then
    redis.call('HSET', key.batch, 'cursor', total)
    return nil, 'handed out'
  end
  local by_time = item_ms and math.ceil(1000 / math.max(1, tonumber(item_ms))) or 1
  local size = math.max(1, math.min(by_time, math.ceil(remaining / (2 * window)), 10))
  redis.call('HSET', key.batch, 'cursor', int(first + size))
  return first, size, 0
end

-- Whether an item has to wait for the one before it in its conversation; if so it does, and takes no slot.
local function waits(index)
  local earlier = string.match(redis.call('LINDEX', key.items, index), '^>(%d+)')
  if not earlier or redis.call('HEXISTS', key.rows, earlier) == 1 then return false end
  park(key, earlier, index, '>')
  return true
end

-- Likewise in a batch with conversations, whose slices are single items. What is to be done again comes first: others
-- may wait for it.
local function next_turn()
  local cursor = tonumber(reached)
  for _ = 1, LOOKED_AT do
    local index, crashes = next_again(), 0
    if not index then
      local entry = redis.call('LPOP', key.redo)
      if entry then
        index, crashes = string.match(entry, '^(%d+):%d+:(%d+)')
      elseif cursor < total then
        index, cursor = int(cursor), cursor + 1
        redis.call('HSET', key.batch, 'cursor', int(cursor))
      else
        return nil, 'handed out'
      end
    end
    local known = redis.call('HEXISTS', key.rows, index) == 1
    if not known and not waits(index) then return tonumber(index), 1, tonumber(crashes) end
  end
  return nil, 'looking'
end

-- The slice that this token was given before: its first index, its size and its crashes; nothing when there is none.
local function known_slice()
  local start = redis.call('HGET', key.slices, 'token:' .. token)
  if not start then return end
  local count, crashes = string.match(redis.call('HGET', key.slices, start), '^(%d+):(%d+)')
  return tonumber(start), tonumber(count), tonumber(crashes)
end

-- The slice that is next, likewise; or nil, and why there is none.
local function new_slice()
  if step then
    if redis.call('HEXISTS', key.slices, STEPS[step]) == 1 or tonumber(step_waits or 0) > now then return nil, step end
    return STEPS[step], 0, tonumber(step_crashes or 0)
  end
  if state ~= 'in_progress' then return nil, state end
  if paused_at then return nil, 'paused' end
  if waits_until and tonumber(waits_until) > now then return nil, 'budget' end
  if tonumber(running) >= window then return nil, 'window' end
  if talks then return next_turn() end
  return next_slice()
end

local start, count, crashes = known_slice()
if not start then
  start, count, crashes = new_slice()
  if not start then
    if state == 'in_progress' then redis.call('HSET', key.batch, 'left', 1) end
    return { 'refused', count }
  end
  if not step then redis.call('HSETNX', key.batch, 'started_at', int(now)) end
  hold_slice(key, batch_id, start, count .. ':' .. crashes, token, now + tonumber(ARGV[2]))
end

local work = {}
local items = count > 0 and redis.call('LRANGE', key.items, start, start + count - 1) or {}
for offset, item in ipairs(items) do
  local index = int(start + offset - 1)
  if redis.call('HEXISTS', key.rows, index) == 0 then
    local earlier = string.match(item, '^=(%d+)')
    if earlier then
      if state == 'in_progress' then repeat_row(key, earlier, index, item) end
    elseif string.sub(item, 1, 1) == '>' then
      work[#work + 1], work[#work + 2] = index, item
    elseif string.sub(item, 1, 1) ~= '!' then
      work[#work + 1], work[#work + 2] = index, item
      local call_id = batch_id .. '.' .. token .. '.' .. index .. '.1'
      local row = string.gsub(ARGV[6], 'CALL', call_id, 1)
      redis.call('HSETNX', key.ledger, call_id, stamped(row, int(now), int(crashes + 1)))
    end
  end
end
local fence = redis.call('HGET', key.fences, batch_id .. '/' .. int(start))
return { 'claimed', int(start), int(count), fence, crashes >= tonumber(ARGV[4]) and 1 or 0, int(now), created_at, defaults,
  work, tenant, talks and redis.call('HGET', key.slices, 'try:' .. int(start)) or 0, int(crashes + 1),
  api_key or '' }
