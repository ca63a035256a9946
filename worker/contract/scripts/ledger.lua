-- Writes rows of the ledger outside of a claim or commit: first what ended, then what is about to begin.
-- A call that begins under a claim which is over is lost until its worker says how it ended.
-- KEYS ledger totals usage record (of the turn or batch) slices (of a batch)
-- ARGV settled intended (how many), then the settled calls, then call id, row, … of the intended ones
-- Returns 1.
local key = { ledger = KEYS[1], totals = KEYS[2], usage = KEYS[3], turn = KEYS[4], batch = KEYS[5] and KEYS[4] }
local at = settle_from(key, 3, tonumber(ARGV[1]))
for index = at, at + 2 * tonumber(ARGV[2]) - 1, 2 do
  local call_id, token = ARGV[index], token_of(ARGV[index])
  local row = stamped(ARGV[index + 1], int(now_ms()))
  local held
  if KEYS[5] then
    held = redis.call('HEXISTS', KEYS[5], 'token:' .. token) == 1
  else
    held = redis.call('HGET', key.turn, 'claim') == token and redis.call('HGET', key.turn, 'state') == 'running'
  end
  if redis.call('HSETNX', key.ledger, call_id, row) == 1 and not held then lose(key, call_id, row) end
end
age_ledger(key)
return 1
