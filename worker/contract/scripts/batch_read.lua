-- Reads rows of a batch, as many of the first ones as have about so many bytes together, and at least one. Writes nothing.
-- A row that repeats an earlier one counts with that one's bytes, because whoever reads it will have both.
-- KEYS rows
-- ARGV bytes, then the indexes
-- Returns the rows, nothing in the place of one that is not there.
local rows, left = {}, tonumber(ARGV[1])
for position = 2, #ARGV do
  if left <= 0 then break end
  local row = redis.call('HGET', KEYS[1], ARGV[position])
  rows[#rows + 1] = row
  if row then
    local earlier = string.match(row, '^[=!]+(%d+) ')
    left = left - #row - (earlier and redis.call('HSTRLEN', KEYS[1], earlier) or 0)
  end
end
return rows
