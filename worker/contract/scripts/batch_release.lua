-- Takes a slice from its worker: handed back, or its lease ran out. What has no result is done again.
-- A slice that was in three crashes is split into single items, which are suspects from then on.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals
-- ARGV batch_id start fence ('' for a lease that ran out) max_deaths wake_ms ttl_ms dead_lease_ms calls, then the calls
-- Returns { 'queued' } | { 'refused' } | { 'over' }
--      | { 'dead', index, fence, item } when the caller has to write that item's failure under that fence.
local key, batch_id, start = batch_keys(), ARGV[1], tonumber(ARGV[2])
local slice, handed_back = batch_id .. '/' .. ARGV[2], ARGV[3] ~= ''
settle_from(key, 9, tonumber(ARGV[8]))

local entry = redis.call('HGET', key.slices, ARGV[2])
if not entry then
  redis.call('ZREM', key.leases, slice)
  redis.call('HDEL', key.fences, slice)
  return { 'refused' }
end
if handed_back and redis.call('HGET', key.fences, slice) ~= ARGV[3] then return { 'refused' } end
local now = now_ms()
local until_ms = redis.call('ZSCORE', key.leases, slice)
if not handed_back and until_ms and tonumber(until_ms) > now then return { 'refused' } end

local count, crashes, deaths, token = string.match(entry, '^(%d+):(%d+):(%d+):(%w+)$')
count, crashes, deaths = tonumber(count), tonumber(crashes), tonumber(deaths)
if not handed_back then
  if crashes >= SUSPECT_AFTER then deaths = deaths + 1 end
  crashes = crashes + 1
end
local step = handed_back and unmake or lose
for index = start, start + count - 1 do
  local number, row, call_id = 0, nil, nil
  repeat
    if row then step(key, call_id, row) end
    number = number + 1
    call_id = batch_id .. '.' .. token .. '.' .. int(index) .. '.' .. number
    row = redis.call('HGET', key.ledger, call_id)
  until not row
end
if count == 1 and deaths >= tonumber(ARGV[4]) then
  local fence = redis.call('HINCRBY', key.batch, 'fence', 1)
  redis.call('HSET', key.fences, slice, fence)
  redis.call('ZADD', key.leases, int(now + tonumber(ARGV[7])), slice)
  return { 'dead', ARGV[2], fence, redis.call('LINDEX', key.items, start) }
end

local running = free_slice(key, batch_id, ARGV[2])
local state = redis.call('HGET', key.batch, 'state')
if state ~= 'in_progress' then
  if state == 'cancelling' and running == 0 then
    end_batch(key, batch_id, 'cancelled', ARGV[6])
  end
  return { 'over' }
end
local counts = ':' .. crashes .. ':' .. deaths
if crashes < SUSPECT_AFTER then
  redis.call('RPUSH', key.redo, ARGV[2] .. ':' .. int(count) .. counts)
else
  for index = start, start + count - 1 do
    if redis.call('HEXISTS', key.rows, int(index)) == 0 then redis.call('RPUSH', key.redo, int(index) .. ':1' .. counts) end
  end
end
redis.call('ZADD', key.ready, int(now + tonumber(ARGV[5])), batch_id)
return { 'queued' }
