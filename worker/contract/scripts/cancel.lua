-- Cancels a turn: at once while it waits, through its worker while it runs. What it has done with tools stays in
-- memory.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id result channel keep ttl_ms wake_ms control event expected ('' or the state it must have)
-- Returns { 'cancelled', next turn id or '' } | { 'asked', '' } | { 'finished', '' } | { 'gone', '' }
--      | { 'changed', state }.
local key = turn_keys()
local state = redis.call('HGET', key.turn, 'state')
if not state then return { 'gone', '' } end
if ARGV[9] ~= '' and state ~= ARGV[9] then return { 'changed', state } end
if state == 'running' then
  redis.call('HSETNX', key.turn, 'cancel', 'cancel')
  redis.call('PUBLISH', ARGV[7], ARGV[1] .. ' ' .. redis.call('HGET', key.turn, 'cancel'))
  return { 'asked', '' }
end
if state ~= 'queued' and state ~= 'scheduled' and state ~= 'requires_action' then return { 'finished', '' } end
learn_left(key, ARGV[1])
return { 'cancelled', conclude(key, ARGV[1], 'cancelled', ARGV[2], { ARGV[8] }, ARGV[3], tonumber(ARGV[4]), ARGV[5],
  tonumber(ARGV[6])) }
