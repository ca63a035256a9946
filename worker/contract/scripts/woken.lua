-- Notes that ready work was woken again: it is due later, each time after twice as long.
-- KEYS ready wakes
-- ARGV first_ms longest_ms works…
-- Returns nothing.
local now = now_ms()
for index = 3, #ARGV do
  local work = ARGV[index]
  if redis.call('ZSCORE', KEYS[1], work) then
    local count = redis.call('HINCRBY', KEYS[2], work, 1)
    local pause = math.min(tonumber(ARGV[1]) * 2 ^ math.min(count - 1, 16), tonumber(ARGV[2]))
    redis.call('ZADD', KEYS[1], int(now + pause), work)
  end
end
