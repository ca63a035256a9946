-- Gives the next slice of a batch to a worker. A slice is as many items as take about a second.
-- Repeating the call with the same token gives the same slice.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage
-- ARGV batch_id lease_ms max_version suspect_after token call_row
-- Call ids are `<batch>.<token>.<index>.1`; call_row holds `CALL` where the id belongs.
-- Returns { 'claimed', start, count, fence, suspect, now, created_at, defaults, { index, item, … } }
--      or { 'gone' } | { 'newer' } | { 'refused', why }.
-- A slice that was in `suspect_after` crashes is a suspect: the worker runs it in a process of its own.
local key, batch_id, token = batch_keys(), ARGV[1], ARGV[5]
local record = redis.call('HMGET', key.batch, 'state', 'version', 'total', 'cursor', 'running', 'window', 'item_ms',
  'created_at', 'defaults')
if not record[1] then return { 'gone' } end
if tonumber(record[2]) > tonumber(ARGV[3]) then return { 'newer' } end

local now = now_ms()
local start, count, crashes
local known = redis.call('HGET', key.slices, 'token:' .. token)
if known then
  start = tonumber(known)
  count, crashes = string.match(redis.call('HGET', key.slices, known), '^(%d+):(%d+)')
  count, crashes = tonumber(count), tonumber(crashes)
else
  if record[1] ~= 'in_progress' then return { 'refused', record[1] } end
  local total, cursor, window = tonumber(record[3]), tonumber(record[4]), tonumber(record[6])
  if tonumber(record[5]) >= window then return { 'refused', 'window' } end

  local entry = redis.call('LPOP', key.redo)
  if entry then
    start, count, crashes = string.match(entry, '^(%d+):(%d+):(%d+)')
    start, count, crashes = tonumber(start), tonumber(count), tonumber(crashes)
  else
    local remaining = total - cursor
    if remaining <= 0 then return { 'refused', 'handed out' } end
    local by_time = record[7] and math.floor(1000 / math.max(1, tonumber(record[7]))) or 1
    count = math.max(1, math.min(by_time, math.ceil(remaining / (2 * window)), 50))
    start, crashes = cursor, 0
    redis.call('HINCRBY', key.batch, 'cursor', count)
  end
  hold_slice(key, batch_id, start, count .. ':' .. crashes, token, now + tonumber(ARGV[2]))
  redis.call('HSETNX', key.batch, 'started_at', int(now))
end

local work = {}
local items = redis.call('LRANGE', key.items, start, start + count - 1)
for offset, item in ipairs(items) do
  local index = int(start + offset - 1)
  if redis.call('HEXISTS', key.rows, index) == 0 then
    work[#work + 1], work[#work + 2] = index, item
    local call_id = batch_id .. '.' .. token .. '.' .. index .. '.1'
    redis.call('HSETNX', key.ledger, call_id, (string.gsub(ARGV[6], 'CALL', call_id, 1)))
  end
end
local fence = redis.call('HGET', key.fences, batch_id .. '/' .. int(start))
return { 'claimed', int(start), int(count), fence, crashes >= tonumber(ARGV[4]) and 1 or 0, int(now), record[8], record[9], work }
