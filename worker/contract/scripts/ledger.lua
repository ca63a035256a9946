-- Writes rows of the ledger outside of a claim or commit: first what ended, then what is about to begin.
-- KEYS ledger totals owner (the turn or batch)
-- ARGV settled intended, then the settled calls, then call id, row, … of the intended ones
local key = { ledger = KEYS[1], totals = KEYS[2], turn = KEYS[3] }
local at = settle_from(key, 3, tonumber(ARGV[1]))
for index = at, #ARGV, 2 do redis.call('HSETNX', key.ledger, ARGV[index], ARGV[index + 1]) end
age_ledger(key)
return 1
