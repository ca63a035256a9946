-- Lists versions of a conversation, the oldest first.
-- KEYS conv msgs history
-- ARGV after limit
-- Returns { 'ok', number, version, number, version, … } | { 'missing' }.
local key = conversation_keys()
if redis.call('EXISTS', key.conv) == 0 then return { 'missing' } end
adopt(key)
settle_lives(key)
local head, baseline = bounds(key)
local first, found = math.max(tonumber(ARGV[1]) + 1, baseline, 1), { 'ok' }
for number = first, math.min(first + tonumber(ARGV[2]) - 1, head) do
  found[#found + 1] = number
  found[#found + 1] = redis.call('HGET', key.history, int(number))
end
return found
