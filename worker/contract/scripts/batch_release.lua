-- Takes a slice from its worker: handed back, or its lease ran out. What has no result is done again.
-- A slice that was in `suspect_after` crashes is split into single items, which are suspects from then on.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id start fence ('' for a lease that ran out) suspect_after wake_ms ttl_ms waits_ms calls, then the calls
--      (waits_ms: for how long no slice of the batch is given out)
-- Returns { 'queued' } | { 'refused' } | { 'over' }.
local key, batch_id, start = batch_keys(), ARGV[1], tonumber(ARGV[2])
local slice, handed_back = batch_id .. '/' .. ARGV[2], ARGV[3] ~= ''
settle_from(key, 9, tonumber(ARGV[8]))

local entry = redis.call('HGET', key.slices, ARGV[2])
if not entry then
  end_lease(key, slice)
  return { 'refused' }
end
if handed_back and redis.call('HGET', key.fences, slice) ~= ARGV[3] then return { 'refused' } end
local now = now_ms()
local until_ms = redis.call('ZSCORE', key.leases, slice)
if not handed_back and until_ms and tonumber(until_ms) > now then return { 'refused' } end

local count, crashes, token = string.match(entry, '^(%d+):(%d+):.-(%w+)$')
count, crashes = tonumber(count), tonumber(crashes)
if not handed_back then crashes = crashes + 1 end
-- The items of a slice are run one after the other: only the first without a row can have been asked.
local step = handed_back and unmake or lose
for index = start, start + count - 1 do
  local number, row, call_id = 0, nil, nil
  repeat
    if row then step(key, call_id, row) end
    number = number + 1
    call_id = batch_id .. '.' .. token .. '.' .. int(index) .. '.' .. number
    row = redis.call('HGET', key.ledger, call_id)
  until not row
  if number > 1 and redis.call('HEXISTS', key.rows, int(index)) == 0 then step = unmake end
end

local state, paused_at = unpack(redis.call('HMGET', key.batch, 'state', 'paused_at'))
if count > 0 then
  if crashes < tonumber(ARGV[4]) and state == 'in_progress' then
    redis.call('RPUSH', key.redo, ARGV[2] .. ':' .. int(count) .. ':' .. crashes)
  else
    keep_for_later(key, ARGV[2], crashes)
  end
elseif not handed_back then
  redis.call('HINCRBY', key.batch, 'step_crashes', 1)
end
free_slice(key, batch_id, ARGV[2])
if start == STEPS.validate and state == 'cancelling' then
  redis.call('HDEL', key.batch, 'step')
  end_batch(key, batch_id, 'cancelled', ARGV[6])
  return { 'over' }
end
if start >= 0 and state ~= 'in_progress' then
  go_on(key, batch_id, ARGV[6], ARGV[5])
  return { 'over' }
end
local waits_ms = tonumber(ARGV[7])
if waits_ms > 0 then
  redis.call('HSET', key.batch, start < 0 and 'step_waits' or 'waits_until', int(now + waits_ms))
end
if not paused_at or start < 0 then list_ready(key, batch_id, now + waits_ms + tonumber(ARGV[5])) end
return { 'queued' }
