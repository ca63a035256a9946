-- Makes a conversation's memory again what it was at a version; what leaves memory is kept under its version.
-- This makes a new version. A repetition finds its own token.
-- KEYS conv msgs history
-- ARGV version expected token   (expected: the latest version as it was seen, '' for any)
-- Returns { 'ok' | 'missing' } | { 'busy', active turn id } | { 'moved' | 'unknown' | 'compacted', latest, baseline }.
local key, version = conversation_keys(), tonumber(ARGV[1])
local created_at, active, moved_by = unpack(redis.call('HMGET', key.conv, 'created_at', 'active', 'moved'))
if not created_at then return { 'missing' } end
if moved_by == ARGV[3] then return { 'ok' } end
if active then return { 'busy', active } end
adopt(key)
local head, baseline, refusal = bounds(key, version)
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= head then return { 'moved', head, baseline } end
if refusal then return refusal end

local taken, added = way(key, head, version)
for _, number in ipairs(taken) do
  local messages = messages_of(key, number)
  redis.call('HSET', key.history, 'messages:' .. int(number), table.concat(messages, '\n'))
  redis.call('LTRIM', key.msgs, 0, -#messages - 1)
end
for _, number in ipairs(added) do
  push(key.msgs, messages_of(key, number))
  redis.call('HDEL', key.history, 'messages:' .. int(number))
end
local summary = summary_of(key, resolved(key, version))
add_version(key, 'checkout', ',"to":' .. int(version), summary)
redis.call('HSET', key.conv, 'moved', ARGV[3], 'summary', summary)
settle_lives(key)
return { 'ok' }
