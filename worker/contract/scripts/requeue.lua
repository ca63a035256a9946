-- Takes a running turn from its worker: handed back, or its lease ran out.
-- A hand-back never counts as an attempt. A turn that was in three crashes is a suspect from then on;
-- only deaths as its process's sole suspect count towards the dead letter.
-- The calls are settled even when the attempt is refused.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals
-- ARGV turn_id fence ('' for a lease that ran out) channel keep ttl_ms wake_ms max_deaths
--      dead_result calls events, then the calls that ended and the events of a dead letter
-- Returns { 'queued', '' } | { 'dead', next turn id or '' } | { 'refused', '' }.
local key = turn_keys()
local turn_id, fence, wake_ms = ARGV[1], ARGV[2], tonumber(ARGV[6])
local at = settle_from(key, 11, tonumber(ARGV[9]))

local record = redis.call('HMGET', key.turn, 'state', 'fence', 'crashes', 'deaths')
local handed_back = fence ~= ''
if record[1] ~= 'running' or (handed_back and record[2] ~= fence) then
  if not handed_back and record[1] ~= 'running' then redis.call('ZREM', key.leases, turn_id) end
  return { 'refused', '' }
end
if not handed_back then
  local until_ms = redis.call('ZSCORE', key.leases, turn_id)
  if until_ms and tonumber(until_ms) > now_ms() then return { 'refused', '' } end
end

local deaths = tonumber(record[4] or 0)
if handed_back then
  redis.call('HINCRBY', key.turn, 'attempts', -1)
  close_calls(key)
else
  if tonumber(record[3] or 0) >= SUSPECT_AFTER then deaths = redis.call('HINCRBY', key.turn, 'deaths', 1) end
  redis.call('HINCRBY', key.turn, 'crashes', 1)
  redis.call('HDEL', key.turn, 'claim')
  close_calls(key)
end
if deaths >= tonumber(ARGV[7]) then
  local events = take(at, tonumber(ARGV[10]))
  return { 'dead', conclude(key, turn_id, 'failed', ARGV[8], events, ARGV[3], tonumber(ARGV[4]), ARGV[5], wake_ms) }
end
redis.call('HSET', key.turn, 'state', 'queued')
redis.call('HDEL', key.turn, 'worker', 'claim')
redis.call('ZREM', key.leases, turn_id)
redis.call('HDEL', key.fences, turn_id)
redis.call('ZADD', key.ready, int(now_ms() + wake_ms), turn_id)
return { 'queued', '' }
