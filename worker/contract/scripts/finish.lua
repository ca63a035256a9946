-- Commits an attempt: calls settled, messages in memory under a new version, final state, terminal event, lease
-- released, next turn handed out, also to who asks again. The calls are settled even when the attempt is refused.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id fence state result channel keep ttl_ms wake_ms position calls messages events, then the
--      calls, messages and events themselves (position: how many events of this attempt came before)
-- Returns { 'ok', next turn id or '' } | { 'refused', '' }
--      | { 'rollback', '' } when the turn is to end as cancelled, without messages.
local key = turn_keys()
local at = settle_from(key, 13, tonumber(ARGV[10]))

local state, fence, appended, cancel = unpack(redis.call('HMGET', key.turn, 'state', 'fence', 'appended', 'cancel'))
if fence == ARGV[2] and state == ARGV[3] then return { 'ok', redis.call('HGET', key.conv, 'active') or '' } end
if state ~= 'running' or fence ~= ARGV[2] then return { 'refused', '' } end
if cancel == 'rollback' and (ARGV[3] ~= 'cancelled' or ARGV[11] ~= '0') then return { 'rollback', '' } end

local messages, behind = take(at, tonumber(ARGV[11]))
local events = take_new(behind, tonumber(ARGV[12]), tonumber(ARGV[9]), appended)
learn(key, ARGV[1], messages)
return { 'ok', conclude(key, ARGV[1], ARGV[3], ARGV[4], events, ARGV[5], tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])) }
