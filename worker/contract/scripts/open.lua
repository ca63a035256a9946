-- Creates a conversation, with the messages that it has already: they are its first version. A repetition finds
-- its own token.
-- KEYS conv convs msgs history
-- ARGV conversation_id version memory_k settings on_busy ttl_ms token created_at memory summarized summary messages…
--      (created_at may be '': now; `summary` stands for the first `summarized` messages, 0 for none)
-- Returns 1, or 0 when there is one.
local key = { conv = KEYS[1], convs = KEYS[2], msgs = KEYS[3], history = KEYS[4] }
local created_at, made_by = unpack(redis.call('HMGET', key.conv, 'created_at', 'made'))
if created_at then return made_by == ARGV[7] and 1 or 0 end
local now = int(now_ms())
redis.call('HSET', key.conv, 'version', ARGV[2], 'created_at', ARGV[8] ~= '' and ARGV[8] or now, 'memory_k', ARGV[3],
  'settings', ARGV[4], 'on_busy', ARGV[5], 'ttl_ms', ARGV[6], 'made', ARGV[7], 'memory', ARGV[9])
redis.call('DEL', key.msgs, key.history)
push(key.msgs, (take(12, #ARGV - 11)))
adopt(key)
if ARGV[10] ~= '0' then keep_summary(key, 1, ARGV[10], ARGV[11]) end
if ARGV[6] ~= '0' then
  for _, word in ipairs({ 'conv', 'msgs', 'history' }) do redis.call('PEXPIRE', key[word], ARGV[6]) end
end
list_new(key, ARGV[1])
return 1
