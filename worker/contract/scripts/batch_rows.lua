-- Stores results of a slice, each item once, and with `over` gives the slice's lease back. What was asked before a
-- batch's time was over still counts; of a batch that writes its files, or has ended, no result is stored any more.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id start fence over ttl_ms wake_ms calls rows, then the calls, then per row: index row ok latency_ms
--      (ok is 1, or 0, or 2 where the answer is one that an earlier batch was given, for which no call was made),
--      then, of a slice whose one item was a turn, what its calls took: field, integer, field, integer, …
--      (the turn's own ledger has counted them; only the sums of the batch gain them, once, with the row)
-- Returns { 'ok', more, state, left } | { 'refused', 0, '', 0 }: `more` is 1 when there is work to hand out, `left`
-- is 1 when somebody was refused work since the last answer that said so.
local key, batch_id, slice = batch_keys(), ARGV[1], ARGV[1] .. '/' .. ARGV[2]
local at = settle_from(key, 9, tonumber(ARGV[7]))
if redis.call('HGET', key.fences, slice) ~= ARGV[3] then return { 'refused', 0, '', 0 } end

local state, step = unpack(redis.call('HMGET', key.batch, 'state', 'step'))
local taken = state == 'in_progress' or state == 'cancelling' or (state == 'finalizing' and not step)
local stored
for _ = 1, tonumber(ARGV[8]) do
  if taken and redis.call('HSETNX', key.rows, ARGV[at], ARGV[at + 1]) == 1 then
    stored = true
    count_row(key, ARGV[at], ARGV[at + 2] ~= '0')
    if ARGV[at + 2] == '2' then
      redis.call('HINCRBY', key.batch, 'saved', 1)
      forget_call(key, batch_id, ARGV[2], ARGV[at])
    end
    local known, latest = tonumber(redis.call('HGET', key.batch, 'item_ms') or ARGV[at + 3]), tonumber(ARGV[at + 3])
    redis.call('HSET', key.batch, 'item_ms', string.format('%.1f', known + (latest - known) * 0.1))
    unpark(key, ARGV[at])
  end
  at = at + 4
end
if stored then
  for sum = at, #ARGV, 2 do add(key.batch, SUMS[ARGV[sum]], ARGV[sum + 1]) end
end
if ARGV[4] == '1' then
  if not taken then keep_for_later(key, ARGV[2], 0) end
  free_slice(key, batch_id, ARGV[2])
end

state = go_on(key, batch_id, ARGV[5], ARGV[6])
local total, cursor, next_step, paused_at = unpack(redis.call('HMGET', key.batch, 'total', 'cursor', 'step', 'paused_at'))
local more = next_step or (state == 'in_progress' and not paused_at and (tonumber(cursor) < tonumber(total)
  or redis.call('EXISTS', key.redo, key.again) > 0))
return { 'ok', more and 1 or 0, state, more and redis.call('HDEL', key.batch, 'left') or 0 }
