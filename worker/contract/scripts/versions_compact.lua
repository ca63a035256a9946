-- Puts one entry in the place of all entries of an agent's conversation up to its number.
-- KEYS versions
-- ARGV number entry
-- Returns 1, or 0 when there is no entry of this number.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local number, first = tonumber(ARGV[1]), tonumber(redis.call('HGET', KEYS[1], 'first'))
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], 'first', ARGV[1])
for start = first, number - 1, 500 do
  local gone = {}
  for old = start, math.min(start + 499, number - 1) do gone[#gone + 1] = int(old) end
  redis.call('HDEL', KEYS[1], unpack(gone))
end
return 1
