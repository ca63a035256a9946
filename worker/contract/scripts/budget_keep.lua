-- Lets what one owner has used of its budgets be remembered until a turn of its own has come and gone.
-- KEYS budget
-- ARGV until_ms (when the turn comes)
-- Returns 1, or 0 where there is nothing to remember, or that is remembered for long anyway.
local lives = redis.call('HGET', KEYS[1], 'lives')
if not lives then return 0 end
remember_for(KEYS[1], tonumber(lives) + math.max(0, tonumber(ARGV[1]) - now_ms()))
return 1
