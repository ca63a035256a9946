-- Reads items of a batch as they are stored, as many of the first ones as have about so many bytes together. Writes nothing.
-- KEYS items
-- ARGV first last bytes
-- Returns the entries.
local AT_ONCE = 10
local entries, first, last, left = {}, tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
while first <= last and left > 0 do
  for _, entry in ipairs(redis.call('LRANGE', KEYS[1], first, math.min(first + AT_ONCE - 1, last))) do
    entries[#entries + 1], left = entry, left - #entry
  end
  first = first + AT_ONCE
end
return entries
