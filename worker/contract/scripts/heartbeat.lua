-- Renews the leases that a worker holds on one shard.
-- KEYS leases fences
-- ARGV lease_ms, then work, fence, work, fence, …
-- Returns the works that it no longer holds.
local until_ms, lost = int(now_ms() + tonumber(ARGV[1])), {}
for index = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[index]) == ARGV[index + 1] then
    redis.call('ZADD', KEYS[1], until_ms, ARGV[index])
  else
    lost[#lost + 1] = ARGV[index]
  end
end
return lost
