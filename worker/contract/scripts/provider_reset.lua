-- Forgets what is held against a model: circuit, cool-down and slower pace. Its limits go on counting.
-- KEYS record unwell
-- ARGV name channel
-- Returns 1, or 0 when nothing is known of it.
local KEPT = { name = true, rpm = true, tpm = true, concurrency = true, chat_seen = true }
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if not KEPT[field] then redis.call('HDEL', KEYS[1], field) end
end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[1] .. ' 1')
return 1
