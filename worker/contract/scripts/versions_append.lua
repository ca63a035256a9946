-- Adds the next entry to an agent's conversation; a repetition finds its own entry and adds nothing.
-- KEYS versions versioned
-- ARGV number entry conversation_id
-- Returns 1, or 0 when the number is not the next one.
local number = tonumber(ARGV[1])
local last = tonumber(redis.call('HGET', KEYS[1], 'last') or 0)
if number <= last then return redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] and 1 or 0 end
if number ~= last + 1 then return 0 end
redis.call('HSET', KEYS[1], 'last', ARGV[1], ARGV[1], ARGV[2])
if number == 1 then
  redis.call('HSET', KEYS[1], 'first', ARGV[1])
  redis.call('ZADD', KEYS[2], 0, ARGV[3])
end
return 1
