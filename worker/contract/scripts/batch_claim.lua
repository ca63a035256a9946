-- Gives the next slice of a batch to a worker: as many items as take about a second, at most ten, so that others get a
-- slot soon; or one of the steps that come before and after all items, which are `-1` and `-2` and have none.
-- Repeating the call with the same token gives the same slice.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id lease_ms max_version suspect_after token call_row
-- Call ids are `<batch>.<token>.<index>.1`; call_row holds `CALL` where the id belongs.
-- Returns { 'claimed', start, count, fence, suspect, now, created_at, defaults, { index, item, … },
--        tenant, how often the one item of a batch with conversations was retried, attempt }
--      or { 'gone' } | { 'newer' } | { 'refused', why }; after 'looking' there is more to look through at once.
-- A slice that was in `suspect_after` crashes is a suspect: the worker runs it in a process of its own.
local key, batch_id, token = batch_keys(), ARGV[1], ARGV[5]
local record = redis.call('HMGET', key.batch, 'state', 'version', 'total', 'cursor', 'running', 'window', 'item_ms',
  'created_at', 'defaults', 'step', 'paused_at', 'tenant', 'turns', 'waits_until')
if not record[1] then return { 'gone' } end
if tonumber(record[2]) > tonumber(ARGV[3]) then return { 'newer' } end

-- How many items of conversations one call looks through.
local LOOKED_AT = 1000
local now, total, window = now_ms(), tonumber(record[3]), tonumber(record[6])
local start, count, crashes

local function refuse(why)
  if record[1] == 'in_progress' then redis.call('HSET', key.batch, 'left', 1) end
  return { 'refused', why }
end

-- Where the next new slice begins, past the rows that are known from the start.
local function next_new()
  local cursor = tonumber(record[4])
  local limit = math.min(total, cursor + 1000)
  while cursor < limit and redis.call('HEXISTS', key.rows, int(cursor)) == 1 do cursor = cursor + 1 end
  return cursor
end

-- The first index of the next slice of any other batch, its size and its crashes; nothing when all is handed out.
local function next_slice()
  local entry = redis.call('LPOP', key.redo)
  if entry then
    local first, size, died = string.match(entry, '^(%d+):(%d+):(%d+)')
    return tonumber(first), tonumber(size), tonumber(died)
  end
  local again = redis.call('LPOP', key.again)
  if again then
    redis.call('HDEL', key.rows, again)
    redis.call('HINCRBY', key.batch, 'failed', -1)
    redis.call('HINCRBY', key.slices, 'try:' .. again, 1)
    return tonumber(again), 1, 0
  end
  local first = next_new()
  local remaining = total - first
  if remaining <= 0 then
    redis.call('HSET', key.batch, 'cursor', total)
    return
  end
  local by_time = record[7] and math.floor(1000 / math.max(1, tonumber(record[7]))) or 1
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

-- The index and the crashes of the next item of a batch with conversations, whose slices are single items. What is
-- to be done again comes first: others may wait for it. Without one: why.
local function next_turn()
  local cursor = tonumber(record[4])
  for _ = 1, LOOKED_AT do
    local index, crashes = redis.call('LPOP', key.again), 0
    if index then
      redis.call('HDEL', key.rows, index)
      redis.call('HINCRBY', key.batch, 'failed', -1)
      redis.call('HINCRBY', key.slices, 'try:' .. index, 1)
    else
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
    if not known and not waits(index) then return tonumber(index), tonumber(crashes) end
  end
  return nil, 'looking'
end

local known = redis.call('HGET', key.slices, 'token:' .. token)
if known then
  start = tonumber(known)
  count, crashes = string.match(redis.call('HGET', key.slices, known), '^(%d+):(%d+)')
  count, crashes = tonumber(count), tonumber(crashes)
else
  if record[10] then
    start, count, crashes = STEPS[record[10]], 0, 0
    if redis.call('HEXISTS', key.slices, int(start)) == 1 then return { 'refused', record[10] } end
  else
    if record[1] ~= 'in_progress' then return { 'refused', record[1] } end
    if record[11] then return refuse('paused') end
    if record[14] and tonumber(record[14]) > now then return refuse('budget') end
    if tonumber(record[5]) >= window then return refuse('window') end
    if record[13] then
      start, crashes = next_turn()
      if not start then return refuse(crashes) end
      count = 1
    else
      start, count, crashes = next_slice()
      if not start then return refuse('handed out') end
    end
    redis.call('HSETNX', key.batch, 'started_at', int(now))
  end
  hold_slice(key, batch_id, start, count .. ':' .. crashes, token, now + tonumber(ARGV[2]))
end

local work = {}
local items = count > 0 and redis.call('LRANGE', key.items, start, start + count - 1) or {}
for offset, item in ipairs(items) do
  local index = int(start + offset - 1)
  if redis.call('HEXISTS', key.rows, index) == 0 then
    local earlier = string.match(item, '^=(%d+)')
    if earlier then
      if record[1] == 'in_progress' then repeat_row(key, earlier, index, item) end
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
return { 'claimed', int(start), int(count), fence, crashes >= tonumber(ARGV[4]) and 1 or 0, int(now), record[8], record[9], work,
  record[12], record[13] and redis.call('HGET', key.slices, 'try:' .. int(start)) or 0, int(crashes + 1) }
