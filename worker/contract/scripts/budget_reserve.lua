-- Reserves the most that a provider call can take, in every budget that holds for it, or in none.
-- A budget is a scope's measure in a window of time; the windows of a length begin at multiples of it, 0 is one without end.
-- Repeating the call reserves nothing twice. What nobody settles in time counts as spent.
-- KEYS calls until
-- ARGV call_id lives_ms prefix (of the names of scopes), then scope measure seconds limit need lost owner_ms, …
--      (lost: what counts of it when nobody can tell what the call took;
--      owner_ms: for how long the scope's owner may live on from now, '' where nobody knows)
-- Returns { 'reserved' } | { 'refused', number of the budget, used, held, milliseconds to the window's end or 0 }.
local call_id, now = ARGV[1], now_ms()
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(now), 'LIMIT', 0, 100)) do
  spend(KEYS[1], KEYS[2], late, ARGV[3], now)
end
if redis.call('HEXISTS', KEYS[1], call_id) == 1 then return { 'reserved' } end

local taken = {}
for at = 4, #ARGV, 7 do
  local scope, measure, seconds = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local field = measure .. ':' .. ARGV[at + 2]
  local name = ARGV[3] .. scope
  local used, held = in_window(name, field, seconds, now, ARGV[at + 6] ~= '' and ARGV[at + 6] or nil)
  if used + held + tonumber(ARGV[at + 4]) > tonumber(ARGV[at + 3]) then
    local left = seconds > 0 and seconds * 1000 - now % (seconds * 1000) or 0
    return { 'refused', (at - 4) / 7, int(used), int(held), int(left) }
  end
  taken[#taken + 1] = scope .. '\n' .. field .. '\n' .. ARGV[at + 4] .. ' ' .. ARGV[at + 5]
end
for _, one in ipairs(taken) do
  local scope, field, need = string.match(one, '^(.-)\n(.-)\n(%d+)')
  redis.call('HINCRBY', ARGV[3] .. scope, field .. ':held', need)
end
redis.call('HSET', KEYS[1], call_id, table.concat(taken, '\n\n'))
redis.call('ZADD', KEYS[2], int(now + tonumber(ARGV[2])), call_id)
return { 'reserved' }
