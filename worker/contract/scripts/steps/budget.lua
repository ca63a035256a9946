-- Budgets: what was used in the present window, and what is held for calls under way.

-- How long a budget is remembered that nobody uses, where its owner does not end sooner.
local BUDGET_MS = 34560000000

-- Lets a budget be remembered for at least so long.
local function remember_for(name, keep_ms)
  if redis.call('PTTL', name) < keep_ms then redis.call('PEXPIRE', name, int(keep_ms)) end
end

-- What was used of a budget in its present window, and what is held for calls under way. It is remembered until the
-- window ends, and for as long as its owner `lives`, which whoever reserves says and the budget knows from then on.
local function in_window(name, field, seconds, now, lives)
  local window = seconds > 0 and int(math.floor(now / (seconds * 1000))) or '0'
  local left = seconds > 0 and seconds * 1000 - now % (seconds * 1000) or 0
  local known = redis.call('HMGET', name, field .. ':window', field .. ':used', field .. ':held', 'lives')
  if lives and lives ~= known[4] then redis.call('HSET', name, 'lives', lives) end
  if known[1] ~= window then redis.call('HSET', name, field .. ':window', window, field .. ':used', 0) end
  remember_for(name, math.max(left, tonumber(lives or known[4] or BUDGET_MS)))
  return known[1] == window and tonumber(known[2] or 0) or 0, tonumber(known[3] or 0)
end

-- Writes down as used what a call took by measure, or what counts where nobody can tell, of a `guess` at what it took
-- the larger of both, but no more than was reserved; returns in how many budgets.
local function spend(calls, until_, call_id, prefix, now, took, guess)
  local budgets = 0
  local reserved = (redis.call('HGET', calls, call_id) or '') .. '\n\n'
  for scope, field, need, lost in string.gmatch(reserved, '(.-)\n(.-)\n(%d+) ?(%d*)\n\n') do
    local name, measure, seconds = prefix .. scope, string.match(field, '^(%l+):(%d+)$')
    if need ~= '0' then redis.call('HINCRBY', name, field .. ':held', '-' .. need) end
    in_window(name, field, tonumber(seconds), now)
    local noted, known = lost ~= '' and lost or need, took and took[measure]
    if known and guess then
      if tonumber(known) < tonumber(noted) then known = noted end
      if tonumber(known) > tonumber(need) then known = need end
    end
    redis.call('HINCRBY', name, field .. ':used', known or noted)
    budgets = budgets + 1
  end
  redis.call('HDEL', calls, call_id)
  redis.call('ZREM', until_, call_id)
  return budgets
end
