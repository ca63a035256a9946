-- Pauses an attempt that waits for a human: its slot is free, its conversation waits in order.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id fence paused question channel keep expires_ms position calls events left, then the calls and events
--      (paused: what the attempt has so far; expires_ms: how long it may wait; left: the messages, one a line, that
--      stay of the turn if it is cancelled now)
-- Returns 'ok' | 'refused' | the kind of cancellation that someone asked for meanwhile.
local key = turn_keys()
local at = settle_from(key, 12, tonumber(ARGV[9]))

local state, fence, appended, cancel = unpack(redis.call('HMGET', key.turn, 'state', 'fence', 'appended', 'cancel'))
if fence == ARGV[2] and state == 'requires_action' then return 'ok' end
if state ~= 'running' or fence ~= ARGV[2] then return 'refused' end
if cancel then return cancel end

redis.call('HSET', key.turn, 'state', 'requires_action', 'paused', ARGV[3], 'question', ARGV[4],
  'left', ARGV[11])
redis.call('HDEL', key.turn, 'worker')
redis.call('HINCRBY', key.turn, 'attempts', -1)
emit(key.turn, key.log, ARGV[5], tonumber(ARGV[6]), take_new(at, tonumber(ARGV[10]), tonumber(ARGV[8]), appended))
close_calls(key)
end_lease(key, ARGV[1])
redis.call('ZADD', key.due, int(now_ms() + tonumber(ARGV[7])), ARGV[1])
return 'ok'
