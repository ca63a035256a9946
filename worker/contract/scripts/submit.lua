-- Stores a turn; ready at once when its conversation is idle, else waiting in its FIFO.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals
-- ARGV turn_id tenant conversation_id version digest body lane channel keep wake_ms create
--      conversation_version memory_k event
-- Returns 'ready' | 'waiting' | 'replayed' | 'mismatch' | 'missing'.
local key, turn_id = turn_keys(), ARGV[1]

local digest = redis.call('HGET', key.turn, 'digest')
if digest then
  return digest == ARGV[5] and 'replayed' or 'mismatch'
end

local now = now_ms()
if redis.call('EXISTS', key.conv) == 0 then
  if ARGV[11] == 'reject' then return 'missing' end
  redis.call('HSET', key.conv, 'version', ARGV[12], 'created_at', int(now), 'memory_k', ARGV[13], 'settings', '{}')
end
redis.call('HSET', key.turn, 'version', ARGV[4], 'tenant', ARGV[2], 'conversation_id', ARGV[3], 'state', 'queued',
  'digest', ARGV[5], 'body', ARGV[6], 'lane', ARGV[7], 'created_at', int(now), 'fence', 0, 'attempts', 0)
emit(key.turn, key.log, ARGV[8], tonumber(ARGV[9]), { ARGV[14] })

if redis.call('HGET', key.conv, 'active') then
  redis.call('RPUSH', key.fifo, turn_id)
  return 'waiting'
end
redis.call('HSET', key.conv, 'active', turn_id)
redis.call('ZADD', key.ready, int(now + tonumber(ARGV[10])), turn_id)
return 'ready'
