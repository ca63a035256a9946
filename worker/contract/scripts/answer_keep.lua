-- Keeps an answer for as long as its batch wishes, or with '' none, and lets others ask; from whoever asks only.
-- KEYS answer asking answers
-- ARGV digest token ttl_ms answer ('' for none)
-- Returns 1, or 0 where another asks now, the answers were erased, or this was done before.
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[2])
if ARGV[4] == '' then return 1 end
local now = now_ms()
redis.call('SET', KEYS[1], int(now) .. ' ' .. ARGV[4], 'PX', ARGV[3])
redis.call('ZREM', KEYS[3], ARGV[1])
list_answer(KEYS[3], ARGV[1], now, ARGV[3])
return 1
