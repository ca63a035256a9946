-- Cancels a turn: at once while it waits, through its worker while it runs.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals
-- ARGV turn_id result channel keep ttl_ms wake_ms control event
-- Returns { 'cancelled', next turn id or '' } | { 'asked', '' } | { 'finished', '' } | { 'gone', '' }.
local key = turn_keys()
local state = redis.call('HGET', key.turn, 'state')
if not state then return { 'gone', '' } end
if state == 'running' then
  redis.call('HSET', key.turn, 'cancel', 1)
  redis.call('PUBLISH', ARGV[7], ARGV[1])
  return { 'asked', '' }
end
if state ~= 'queued' then return { 'finished', '' } end
return { 'cancelled', conclude(key, ARGV[1], 'cancelled', ARGV[2], { ARGV[8] }, ARGV[3], tonumber(ARGV[4]), ARGV[5],
  tonumber(ARGV[6])) }
