-- Forgets members of an index whose own key has expired.
-- KEYS index, then the key of each member
-- ARGV the members
-- Returns how many were forgotten.
local gone = 0
for position, member in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[position + 1]) == 0 then gone = gone + redis.call('ZREM', KEYS[1], member) end
end
return gone
