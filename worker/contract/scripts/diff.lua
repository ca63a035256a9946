-- The messages that one version of a conversation lacks and has, compared with another.
-- KEYS conv msgs history
-- ARGV from to   (from may be '': all that `to` has; to may be '': the latest)
-- Returns { 'ok', removed, added, how many messages the summary at `to` stands for, that summary }
--      | { 'missing' } | { 'unknown' | 'compacted', latest, baseline }.
local key = conversation_keys()
if redis.call('EXISTS', key.conv) == 0 then return { 'missing' } end
adopt(key)
settle_lives(key)
local head, baseline, refusal = bounds(key, tonumber(ARGV[2]))
if refusal then return refusal end
local to = tonumber(ARGV[2]) or head
local node, version = resolved(key, to)
local removed, added = {}, {}
local function collect(messages, number)
  for _, message in ipairs(messages_of(key, number)) do messages[#messages + 1] = message end
end

if ARGV[1] == '' then
  local taken = baseline > 0 and { baseline } or {}
  for _, number in ipairs(taken) do collect(added, number) end
  local _, further = way(key, baseline, to)
  for _, number in ipairs(further) do collect(added, number) end
else
  local from = tonumber(ARGV[1])
  refusal = select(3, bounds(key, from))
  if refusal then return refusal end
  local taken, further = way(key, from, to)
  for _, number in ipairs(reversed(taken)) do collect(removed, number) end
  for _, number in ipairs(further) do collect(added, number) end
end
local count, summary = read_summary(key, summary_of(key, node, version))
return { 'ok', removed, added, count, summary }
