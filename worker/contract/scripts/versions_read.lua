-- Reads an agent's conversation behind an entry. Writes nothing.
-- KEYS versions
-- ARGV after
-- Returns { number of the first entry, entries }.
local from, to = unpack(redis.call('HMGET', KEYS[1], 'first', 'last'))
local first, last = math.max(tonumber(from or 1), tonumber(ARGV[1]) + 1), tonumber(to or 0)
local entries = {}
for start = first, last, 500 do
  local numbers = {}
  for number = start, math.min(start + 499, last) do numbers[#numbers + 1] = int(number) end
  for _, entry in ipairs(redis.call('HMGET', KEYS[1], unpack(numbers))) do entries[#entries + 1] = entry end
end
return { first, entries }
