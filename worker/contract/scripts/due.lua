-- A turn's time has come: one that was scheduled joins its conversation's line, one that waited for a human
-- for too long expires.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id channel keep ttl_ms wake_ms expired_result events…   (of one that expires)
-- Returns { 'ready' | 'waiting' | 'refused', '' } | { 'expired', next turn id or '' }.
local key, turn_id, wake_ms = turn_keys(), ARGV[1], tonumber(ARGV[5])
local now, due_ms = now_ms(), redis.call('ZSCORE', key.due, turn_id)
if not due_ms or tonumber(due_ms) > now then return { 'refused', '' } end
local state = redis.call('HGET', key.turn, 'state')
if state == 'requires_action' then
  return { 'expired', conclude(key, turn_id, 'expired', ARGV[6], (take(7, #ARGV - 6)), ARGV[2], tonumber(ARGV[3]), ARGV[4],
    wake_ms) }
end
redis.call('ZREM', key.due, turn_id)
if state ~= 'scheduled' then return { 'refused', '' } end
redis.call('HSET', key.turn, 'state', 'queued')
if redis.call('HGET', key.conv, 'active') then
  redis.call('RPUSH', key.fifo, turn_id)
  return { 'waiting', '' }
end
make_ready(key, turn_id, now, wake_ms)
return { 'ready', '' }
