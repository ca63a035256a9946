-- Stores a part of a batch's items; a repeated call stores nothing twice.
-- An upload that is never opened disappears by itself.
-- KEYS items
-- ARGV offset ttl_ms items…
-- Returns how many items are stored.
local length = redis.call('LLEN', KEYS[1])
if length == tonumber(ARGV[1]) then
  for start = 3, #ARGV, 500 do
    length = redis.call('RPUSH', KEYS[1], unpack(ARGV, start, math.min(start + 499, #ARGV)))
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return length
