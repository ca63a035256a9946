-- Puts one version in the place of all up to it. Memory stays as it is; what it has left before that is gone.
-- KEYS conv msgs history
-- ARGV version keep   (version may be '': as many are folded as leave the latest `keep` and what they go back to)
-- Returns { 'ok' | 'missing' } | { 'unknown', latest, baseline }
--      | { 'needed', version that goes back below this one, the one that it goes back to }.
local key = conversation_keys()
if redis.call('EXISTS', key.conv) == 0 then return { 'missing' } end
adopt(key)
local head, baseline, refusal = bounds(key, tonumber(ARGV[1]))
if refusal and refusal[1] == 'unknown' then return refusal end
local upto = tonumber(ARGV[1]) or head - tonumber(ARGV[2])
local number = head
while number > math.max(upto, baseline) do
  local to = tonumber(string.match(redis.call('HGET', key.history, int(number)), '"to":(%d+)') or upto)
  if to < upto and ARGV[1] ~= '' then return { 'needed', number, to } end
  upto, number = math.min(upto, to), number - 1
end
if upto <= baseline then return { 'ok' } end

local node, version = resolved(key, upto)
local _, first = resolved(key, baseline)
local summary, before = summary_of(key, node, version), int(first.summary)
local count, text = read_summary(key, summary)
for number = math.max(baseline, 1), upto - 1 do
  redis.call('HDEL', key.history, int(number), 'messages:' .. int(number), 'summary:' .. int(number))
end
redis.call('HDEL', key.history, 'summary:' .. before)
if count > 0 then redis.call('HSET', key.history, 'summary:' .. summary, int(count) .. '\n' .. text) end
redis.call('HSET', key.history, int(upto), '{"kind":"snapshot","at":' .. int(now_ms()) .. ',"messages":'
  .. int(version.messages) .. ',"summary":' .. summary .. '}')
redis.call('HSET', key.conv, 'baseline', int(upto))
settle_lives(key)
return { 'ok' }
