-- Answers the question that a paused turn waits for. The same answer again changes nothing.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id question answer wake_ms
-- Returns { 'ready' | 'replayed' | 'conflict' | 'unknown' } | { 'over', state }.
local key, field = turn_keys(), 'answer:' .. ARGV[2]
local given = redis.call('HGET', key.turn, field)
if given then return { given == ARGV[3] and 'replayed' or 'conflict' } end
local state, question = unpack(redis.call('HMGET', key.turn, 'state', 'question'))
if state ~= 'requires_action' then return { 'over', state } end
if question ~= ARGV[2] then return { 'unknown' } end
redis.call('HSET', key.turn, field, ARGV[3], 'state', 'queued', 'answered', ARGV[2], 'resumed', 1)
redis.call('HDEL', key.turn, 'question')
redis.call('ZREM', key.due, ARGV[1])
list_ready(key, ARGV[1], now_ms() + tonumber(ARGV[4]))
return { 'ready' }
