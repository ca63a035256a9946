-- Stores the next piece of a file; a repeated call stores nothing twice.
-- An upload that is never sealed disappears by itself.
-- KEYS pieces
-- ARGV number ttl_ms piece
-- Returns how many pieces are stored.
local length = redis.call('LLEN', KEYS[1])
if length == tonumber(ARGV[1]) then
  length = redis.call('RPUSH', KEYS[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return length
