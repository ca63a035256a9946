-- Turns reservations into what the calls really took, or into what counts where nobody can tell; repeating the call
-- changes nothing.
-- KEYS calls until
-- ARGV prefix (of the names of scopes), then call_id requests tokens usd, … ('' three times where nobody can tell)
-- Returns how many were settled.
local now, settled = now_ms(), 0
for at = 2, #ARGV, 4 do
  local took = ARGV[at + 1] ~= '' and { requests = ARGV[at + 1], tokens = ARGV[at + 2], usd = ARGV[at + 3] }
  settled = settled + spend(KEYS[1], KEYS[2], ARGV[at], ARGV[1], now, took)
end
return settled
