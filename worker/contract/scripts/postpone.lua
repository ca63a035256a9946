-- Lets a running turn wait until a budget may have room for it: it leaves its conversation's line, and joins it again
-- when its time has come. That counts as no attempt, and is refused where the turn is to stop.
-- The calls are settled even when the attempt is refused.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id fence waits_ms wake_ms calls, then the calls that ended
-- Returns { 'ok', next turn id or '' } | { 'refused', '' } | { the kind of cancellation that someone asked for, '' }.
local key, turn_id = turn_keys(), ARGV[1]
settle_from(key, 6, tonumber(ARGV[5]))

local state, fence, cancel = unpack(redis.call('HMGET', key.turn, 'state', 'fence', 'cancel'))
if fence == ARGV[2] and state == 'scheduled' then return { 'ok', redis.call('HGET', key.conv, 'active') or '' } end
if state ~= 'running' or fence ~= ARGV[2] then return { 'refused', '' } end
if cancel then return { cancel, '' } end

local now = now_ms()
local due_ms = int(now + tonumber(ARGV[3]))
close_calls(key)
redis.call('HSET', key.turn, 'state', 'scheduled', 'due_ms', due_ms)
redis.call('HDEL', key.turn, 'worker', 'claim')
redis.call('HINCRBY', key.turn, 'attempts', -1)
end_lease(key, turn_id)
redis.call('ZADD', key.due, due_ms, turn_id)
return { 'ok', hand_on(key, now, tonumber(ARGV[4])) }
