-- Stores a part of a batch's items, and the rows of those that cannot be run; a repeated call stores nothing twice.
-- An upload that is never opened disappears by itself.
-- An item is JSON, or `=<index> <id as JSON>` where it only repeats the item of that index, or `!` where its row is
-- known already. Before the JSON of one that is a turn of a conversation stands `> `, or `><index> ` where that item is
-- the turn before it.
-- KEYS items rows
-- ARGV offset ttl_ms count items…, then index, row, …
-- Returns how many items are stored.
local length = redis.call('LLEN', KEYS[1])
if length ~= tonumber(ARGV[1]) then return length end
local last = 3 + tonumber(ARGV[3])
for start = 4, last, 500 do
  length = redis.call('RPUSH', KEYS[1], unpack(ARGV, start, math.min(start + 499, last)))
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for at = last + 1, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1]) end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return length
