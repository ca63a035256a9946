-- Keeps the places of calls that go on; what has run out meanwhile is not brought back.
-- KEYS chats batches
-- ARGV permit_ms, then the permits
-- Returns 1.
local until_ms = int(now_ms() + tonumber(ARGV[1]))
for index = 2, #ARGV do
  for _, held in ipairs(KEYS) do redis.call('ZADD', held, 'XX', until_ms, ARGV[index]) end
end
return 1
