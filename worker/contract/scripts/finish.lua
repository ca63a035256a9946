-- Commits an attempt: calls settled, messages in memory under a new version, final state, terminal event, lease
-- released, next turn handed out, also to who asks again. The calls are settled even when the attempt is refused.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id fence state result channel keep ttl_ms wake_ms position calls messages events, then the
--      calls, messages and events themselves (position: how many events of this attempt came before)
-- Returns { 'ok', next turn id or '' } | { 'refused', '' }
--      | { 'rollback', '' } when the turn is to end as cancelled, without messages.
local key = turn_keys()
local at = settle_from(key, 13, tonumber(ARGV[10]))

local record = redis.call('HMGET', key.turn, 'state', 'fence', 'appended', 'cancel')
if record[2] == ARGV[2] and record[1] == ARGV[3] then return { 'ok', redis.call('HGET', key.conv, 'active') or '' } end
if record[1] ~= 'running' or record[2] ~= ARGV[2] then return { 'refused', '' } end
if record[4] == 'rollback' and ARGV[3] ~= 'cancelled' then return { 'rollback', '' } end

local messages, events
messages, at = take(at, tonumber(ARGV[11]))
local known = math.max(0, tonumber(record[3]) - tonumber(ARGV[9]))
events = take(at + known, tonumber(ARGV[12]) - known)
if #messages > 0 then
  adopt(key)
  remember(key, messages)
  add_version(key, 'turn', ',"turn_id":"' .. ARGV[1] .. '"', redis.call('HGET', key.conv, 'summary') or 0)
end
return { 'ok', conclude(key, ARGV[1], ARGV[3], ARGV[4], events, ARGV[5], tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])) }
