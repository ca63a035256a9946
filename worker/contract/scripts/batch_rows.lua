-- Stores results of a slice, each item once, and with `over` gives the slice's lease back.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage
-- ARGV batch_id start fence over ttl_ms calls rows, then the calls, then per row:
--      index row ok input output cached reasoning units unpriced latency_ms
-- Returns { 'ok', 1 when more items wait to be handed out else 0, state } | { 'refused', 0, '' }.
local key, batch_id, slice = batch_keys(), ARGV[1], ARGV[1] .. '/' .. ARGV[2]
local at = settle_from(key, 8, tonumber(ARGV[6]))
if redis.call('HGET', key.fences, slice) ~= ARGV[3] then return { 'refused', 0, '' } end

local sums = { 'input_tokens', 'output_tokens', 'cached_tokens', 'reasoning_tokens', 'units', 'unpriced' }
for _ = 1, tonumber(ARGV[7]) do
  if redis.call('HSETNX', key.rows, ARGV[at], ARGV[at + 1]) == 1 then
    redis.call('HINCRBY', key.batch, ARGV[at + 2] == '1' and 'completed' or 'failed', 1)
    for index, field in ipairs(sums) do
      if ARGV[at + 2 + index] ~= '0' then add(key.batch, field, ARGV[at + 2 + index]) end
    end
    local known, latest = tonumber(redis.call('HGET', key.batch, 'item_ms') or ARGV[at + 9]), tonumber(ARGV[at + 9])
    redis.call('HSET', key.batch, 'item_ms', string.format('%.1f', known + (latest - known) * 0.1))
  end
  at = at + 10
end
if ARGV[4] == '1' then free_slice(key, batch_id, ARGV[2]) end

local record = redis.call('HMGET', key.batch, 'state', 'total', 'cursor', 'completed', 'failed', 'running')
local state = record[1]
local done = tonumber(record[4]) + tonumber(record[5]) == tonumber(record[2])
if done or (state == 'cancelling' and tonumber(record[6]) == 0) then
  state = state == 'cancelling' and 'cancelled' or 'completed'
  end_batch(key, batch_id, state, ARGV[5])
end
local more = state == 'in_progress'
  and (tonumber(record[3]) < tonumber(record[2]) or redis.call('LLEN', key.redo) > 0)
return { 'ok', more and 1 or 0, state }
