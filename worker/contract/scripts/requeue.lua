-- Takes a running turn from its worker: handed back, its lease ran out, or the process died that it had to itself.
-- A hand-back never counts as an attempt, and is refused where the turn is to stop: who runs it ends it. A lease that runs out counts as a crash, and crashes make a suspect;
-- only one that died in a process of its own is a dead letter.
-- The calls are settled even when the attempt is refused.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id fence ('' for a lease that ran out) channel keep ttl_ms wake_ms died (1 or 0)
--      dead_result calls events, then the calls that ended and the events of a dead letter
-- Returns { 'queued', '' } | { 'dead', next turn id or '' } | { 'refused', '' }
--      | { the kind of cancellation that someone asked for, '' }.
local key = turn_keys()
local turn_id, fence, wake_ms = ARGV[1], ARGV[2], tonumber(ARGV[6])
local at = settle_from(key, 11, tonumber(ARGV[9]))

local state, present, cancel = unpack(redis.call('HMGET', key.turn, 'state', 'fence', 'cancel'))
local died, leased = ARGV[7] == '1', fence ~= ''
if state ~= 'running' or (leased and present ~= fence) then
  if not leased and state ~= 'running' then redis.call('ZREM', key.leases, turn_id) end
  return { 'refused', '' }
end
if not leased then
  local until_ms = redis.call('ZSCORE', key.leases, turn_id)
  if until_ms and tonumber(until_ms) > now_ms() then return { 'refused', '' } end
end

if leased and not died then
  if cancel then return { cancel, '' } end
  redis.call('HINCRBY', key.turn, 'attempts', -1)
else
  redis.call('HINCRBY', key.turn, 'crashes', 1)
  redis.call('HDEL', key.turn, 'claim')
end
close_calls(key)
if died then
  local events = take(at, tonumber(ARGV[10]))
  local now = now_ms()
  redis.call('ZREMRANGEBYSCORE', key.dead, '-inf', int(now - tonumber(ARGV[5])))
  redis.call('ZADD', key.dead, int(now), turn_id)
  return { 'dead', conclude(key, turn_id, 'failed', ARGV[8], events, ARGV[3], tonumber(ARGV[4]), ARGV[5], wake_ms) }
end
redis.call('HSET', key.turn, 'state', 'queued')
redis.call('HDEL', key.turn, 'worker', 'claim')
end_lease(key, turn_id)
list_ready(key, turn_id, now_ms() + wake_ms)
return { 'queued', '' }
