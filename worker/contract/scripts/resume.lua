-- Answers the question that a paused turn waits for. The same answer again changes nothing.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id question answer wake_ms
-- Returns { 'ready' | 'replayed' | 'conflict' | 'unknown' } | { 'over', state }.
local key, field = turn_keys(), 'answer:' .. ARGV[2]
local given = redis.call('HGET', key.turn, field)
if given then return { given == ARGV[3] and 'replayed' or 'conflict' } end
local record = redis.call('HMGET', key.turn, 'state', 'question')
if record[1] ~= 'requires_action' then return { 'over', record[1] } end
if record[2] ~= ARGV[2] then return { 'unknown' } end
redis.call('HSET', key.turn, field, ARGV[3], 'state', 'queued', 'answered', ARGV[2], 'resumed', 1)
redis.call('HDEL', key.turn, 'question')
redis.call('ZREM', key.due, ARGV[1])
redis.call('ZADD', key.ready, int(now_ms() + tonumber(ARGV[4])), ARGV[1])
return { 'ready' }
