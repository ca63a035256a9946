-- Forgets what one owner has used of its budgets; calls of its that are under way bring nothing back.
-- KEYS calls until
-- ARGV scope prefix (of the names of scopes)
-- Returns how many calls were under way.
local found = 0
local held = redis.call('HGETALL', KEYS[1])
for at = 1, #held, 2 do
  local others, own = {}, false
  for scope, rest in string.gmatch(held[at + 1] .. '\n\n', '(.-)\n(.-\n.-)\n\n') do
    if scope == ARGV[1] then own = true else others[#others + 1] = scope .. '\n' .. rest end
  end
  if own then
    redis.call('HSET', KEYS[1], held[at], table.concat(others, '\n\n'))
    found = found + 1
  end
end
redis.call('DEL', ARGV[2] .. ARGV[1])
return found
