-- Provider calls: their rows in the ledger, and the sums that they count to.

-- How long a day's usage is kept: 400 days.
local USAGE_MS = 34560000000
-- What a batch's record calls the sums that the totals have by model.
local SUMS = { input = 'input_tokens', output = 'output_tokens', cached = 'cached_tokens',
  reasoning = 'reasoning_tokens', units = 'units', estimated = 'estimated', unpriced = 'unpriced' }

-- Adds the amounts of a call to the totals, to its tenant's usage of the day on which it was entered, by its purpose
-- too, and to the sums of its batch. Where the usage's name ends without a tenant, the record knows whose it is.
-- amounts: field, integer, field, integer, …   (field: provider|model|measure)
local function tally(key, row, amounts)
  local known = redis.call('HGET', key.turn or key.batch, 'tenant')
  local usage = string.sub(key.usage, -1) == ':' and key.usage .. (known or 'default') or key.usage
  local day = usage .. ':' .. int(math.floor((string.match(row, '"at":(%d+)') or now_ms()) / 86400000))
  local purpose = string.match(row, '"purpose":"([%w_]+)"') or ''
  for index = 1, #amounts, 2 do
    add(key.totals, amounts[index], amounts[index + 1])
    local whose, measure = string.match(amounts[index], '^(.*|)([^|]*)$')
    add(day, whose .. purpose .. '|' .. measure, amounts[index + 1])
    local sum = SUMS[(string.gsub(measure, '^lost:', ''))]
    if known and key.batch and sum then add(key.batch, sum, amounts[index + 1]) end
  end
  redis.call('PEXPIRE', day, USAGE_MS)
end

-- A row with what it leaves open: when it was entered, and in which attempt, where the caller does not know.
local function stamped(row, at, attempt)
  if attempt then row = string.gsub(row, '"attempt":null', '"attempt":' .. attempt, 1) end
  return (string.gsub(row, '"at":null', '"at":' .. at, 1))
end

-- What a lost call counts for, by the estimate in its row: in sums of its own, because these can fall. `times` is
-- -1 where its worker has told of it after all.
local function lost_amounts(row, times)
  local call = cjson.decode(row)
  local whose = call.provider .. '|' .. call.model .. '|'
  local amounts = { whose .. 'calls:lost', times }
  local usage, priced = call.usage ~= cjson.null and call.usage or {}, type(call.cost) == 'string'
  local units = priced and math.floor(tonumber(call.cost) * 1e12 + 0.5) or 0
  local counted = { input = usage.input_tokens, output = usage.output_tokens, units = units, estimated = units,
    unpriced = priced and 0 or 1 }
  for measure, amount in pairs(counted) do
    if amount ~= 0 then
      amounts[#amounts + 1], amounts[#amounts + 2] = whose .. 'lost:' .. measure, int(amount * times)
    end
  end
  return amounts
end

-- Writes the final row of a provider call, once, and counts it.
local function settle(key, call_id, row, amounts)
  local before = redis.call('HGET', key.ledger, call_id)
  if before and string.find(before, '"outcome":"lost"', 1, true) then
    tally(key, before, lost_amounts(before, -1))
  elseif before and not string.find(before, '"outcome":"intended"', 1, true) then
    return
  end
  local at = string.match(before or '', '"at":(%d+)') or int(now_ms())
  row = stamped(row, at, string.match(before or '', '"attempt":(%d+)'))
  redis.call('HSET', key.ledger, call_id, row)
  tally(key, row, amounts)
end

-- Marks a call that a dead attempt left open; what it cost is not known.
local function lose(key, call_id, row)
  local changed, count = string.gsub(row, '"outcome":"intended"', '"outcome":"lost"', 1)
  if count == 0 then return end
  redis.call('HSET', key.ledger, call_id, changed)
  tally(key, changed, lost_amounts(changed, 1))
end

-- Forgets a call that an attempt entered and never made: its worker has told of all that it made.
local function unmake(key, call_id, row)
  if string.find(row, '"outcome":"intended"', 1, true) then redis.call('HDEL', key.ledger, call_id) end
end

-- The claim that a call was made under: its id is `<turn or batch>.<token>.…`.
local function token_of(call_id)
  return string.match(call_id, '^[^.]+%.(%w+)%.')
end

-- Leaves no call of a turn open: one of its present claim was never made, any other is lost.
local function close_calls(key)
  local token, rows = redis.call('HGET', key.turn, 'claim'), redis.call('HGETALL', key.ledger)
  for index = 1, #rows, 2 do
    local step = token and token_of(rows[index]) == token and unmake or lose
    step(key, rows[index], rows[index + 1])
  end
end

-- A ledger goes with the turn or batch that it belongs to, also one that a late call brings back.
local function age_ledger(key)
  local left = redis.call('PTTL', key.turn or key.batch)
  if left ~= -1 then redis.call('PEXPIRE', key.ledger, left > 0 and left or 86400000) end
end

-- Settles `count` calls that stand in ARGV from `at` on, each as
-- call id, row, number of amounts, amounts…; returns the position behind them.
local function settle_from(key, at, count)
  for _ = 1, count do
    local amounts, last = {}, at + 2 + tonumber(ARGV[at + 2])
    for position = at + 3, last do amounts[#amounts + 1] = ARGV[position] end
    settle(key, ARGV[at], ARGV[at + 1], amounts)
    at = last + 1
  end
  if count > 0 then age_ledger(key) end
  return at
end
