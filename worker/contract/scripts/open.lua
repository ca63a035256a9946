-- Creates a conversation, with the messages that it has already. A repetition finds its own token.
-- KEYS conv convs msgs
-- ARGV conversation_id version memory_k settings on_busy ttl_ms token created_at messages…
--      (created_at may be '': now)
-- Returns 1, or 0 when there is one.
local made = redis.call('HMGET', KEYS[1], 'created_at', 'made')
if made[1] then return made[2] == ARGV[7] and 1 or 0 end
local now = int(now_ms())
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'created_at', ARGV[8] ~= '' and ARGV[8] or now, 'memory_k', ARGV[3],
  'settings', ARGV[4], 'on_busy', ARGV[5], 'ttl_ms', ARGV[6], 'made', ARGV[7])
redis.call('DEL', KEYS[3])
for start = 9, #ARGV, 500 do
  redis.call('RPUSH', KEYS[3], unpack(ARGV, start, math.min(start + 499, #ARGV)))
end
if ARGV[6] ~= '0' then
  for _, name in ipairs({ KEYS[1], KEYS[3] }) do redis.call('PEXPIRE', name, ARGV[6]) end
end
redis.call('ZADD', KEYS[2], now, ARGV[1])
return 1
