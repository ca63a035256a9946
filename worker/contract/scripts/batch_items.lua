-- Stores a part of a batch's items, and the rows of those that cannot be run; a repeated call stores nothing twice.
-- An upload that is never opened disappears by itself.
-- An item is JSON, or `=<index> <id as JSON>` where it only repeats the item of that index, or `!` where its row is
-- known already. Before the JSON of one that is a turn of a conversation stands `> `, or `><index> ` where that item is
-- the turn before it. `talks` holds under a conversation the index of its last item, behind `erased` from when it is
-- erased while lines are still stored: of the items that follow, only their rows are.
-- KEYS items rows talks order
-- ARGV offset ttl_ms count rows, then the items, index, row, … and of the items that are turns index, conversation, …
-- Returns how many items are stored.
local length = redis.call('LLEN', KEYS[1])
if length ~= tonumber(ARGV[1]) then return length end
local entries, at = take(5, tonumber(ARGV[3]))
local rows = at + 2 * tonumber(ARGV[4])
for pair = at, rows - 1, 2 do
  redis.call('HSET', KEYS[2], ARGV[pair], ARGV[pair + 1])
  redis.call('RPUSH', KEYS[4], ARGV[pair])
end
for pair = rows, #ARGV, 2 do
  local index, conversation = ARGV[pair], ARGV[pair + 1]
  local place = tonumber(index) - length + 1
  local erased = string.match(redis.call('HGET', KEYS[3], conversation) or '', '^erased') or ''
  if erased ~= '' then
    local earlier, item = string.match(entries[place], '^>(%d*) (.*)$')
    redis.call('HSET', KEYS[2], index, erased_row(index, item))
    redis.call('RPUSH', KEYS[4], index)
    entries[place] = '!' .. earlier
  end
  redis.call('HSET', KEYS[3], conversation, erased .. index)
end
length = push(KEYS[1], entries) or length
for _, name in ipairs(KEYS) do redis.call('PEXPIRE', name, ARGV[2]) end
return length
