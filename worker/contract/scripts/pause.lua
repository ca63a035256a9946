-- Pauses an attempt that waits for a human: its slot is free, its conversation waits in order.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id fence paused question channel keep expires_ms position calls events, then the calls and events
--      (paused: what the attempt has so far; expires_ms: how long it may wait)
-- Returns 'ok' | 'refused' | the kind of cancellation that someone asked for meanwhile.
local key = turn_keys()
local at = settle_from(key, 11, tonumber(ARGV[9]))

local record = redis.call('HMGET', key.turn, 'state', 'fence', 'appended', 'cancel')
if record[2] == ARGV[2] and record[1] == 'requires_action' then return 'ok' end
if record[1] ~= 'running' or record[2] ~= ARGV[2] then return 'refused' end
if record[4] then return record[4] end

local known = math.max(0, tonumber(record[3]) - tonumber(ARGV[8]))
redis.call('HSET', key.turn, 'state', 'requires_action', 'paused', ARGV[3], 'question', ARGV[4])
redis.call('HDEL', key.turn, 'worker')
redis.call('HINCRBY', key.turn, 'attempts', -1)
emit(key.turn, key.log, ARGV[5], tonumber(ARGV[6]), (take(at + known, tonumber(ARGV[10]) - known)))
close_calls(key)
redis.call('ZREM', key.leases, ARGV[1])
redis.call('HDEL', key.fences, ARGV[1])
redis.call('ZADD', key.due, int(now_ms() + tonumber(ARGV[7])), ARGV[1])
return 'ok'
