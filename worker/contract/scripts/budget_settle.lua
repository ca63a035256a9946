-- Turns reservations into what the calls really took, or, of calls that were lost, into what is known of that, but no
-- less than was noted and no more than was reserved; repeating the call changes nothing.
-- KEYS calls until
-- ARGV prefix (of the names of scopes), then call_id lost (1 or 0) tokens usd, …
-- Returns how many were settled.
local now, settled = now_ms(), 0
for at = 2, #ARGV, 4 do
  local took = { requests = '1', tokens = ARGV[at + 2], usd = ARGV[at + 3] }
  settled = settled + spend(KEYS[1], KEYS[2], ARGV[at], ARGV[1], now, took, ARGV[at + 1] == '1')
end
return settled
