-- Stands before every script: the steps that several transitions share.
-- Time is Redis's own; all times are Unix milliseconds.

-- How long a day's usage is kept: 400 days.
local USAGE_MS = 34560000000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A plain integer: tostring() of a large number would write an exponent.
local function int(number)
  return string.format('%.0f', number)
end

-- The keys of a turn: every script that changes its state is given all of them in this order.
local function turn_keys()
  return { turn = KEYS[1], log = KEYS[2], conv = KEYS[3], msgs = KEYS[4], fifo = KEYS[5], ready = KEYS[6],
    wakes = KEYS[7], leases = KEYS[8], fences = KEYS[9], ledger = KEYS[10], totals = KEYS[11], due = KEYS[12],
    dead = KEYS[13], turns = KEYS[14], convs = KEYS[15], usage = KEYS[16] }
end

-- A name that ends in a turn's id, for another turn of the same conversation.
local function renamed(name, turn_id, other)
  return string.sub(name, 1, -#turn_id - 1) .. other
end

-- The keys of another turn of the same conversation.
local function keys_of(key, turn_id, other)
  local keys = {}
  for word, name in pairs(key) do keys[word] = name end
  for _, word in ipairs({ 'turn', 'log', 'ledger' }) do keys[word] = renamed(key[word], turn_id, other) end
  return keys
end

-- The keys of a batch, likewise.
local function batch_keys()
  return { batch = KEYS[1], items = KEYS[2], rows = KEYS[3], slices = KEYS[4], redo = KEYS[5], ready = KEYS[6],
    wakes = KEYS[7], leases = KEYS[8], fences = KEYS[9], ledger = KEYS[10], totals = KEYS[11], usage = KEYS[12] }
end

-- Appends events to a turn's log and publishes them with the first one's sequence number.
local function emit(turn, log, channel, keep, events)
  if #events == 0 then return end
  local trimmed = tonumber(redis.call('HGET', turn, 'trimmed') or 0)
  local length
  for start = 1, #events, 500 do
    length = redis.call('RPUSH', log, unpack(events, start, math.min(start + 499, #events)))
  end
  local first = trimmed + length - #events + 1
  if length > keep then
    redis.call('LTRIM', log, length - keep, -1)
    redis.call('HINCRBY', turn, 'trimmed', length - keep)
  end
  redis.call('PUBLISH', channel, int(first) .. '\n' .. table.concat(events, '\n'))
end

-- Adds to a sum. One that no number holds any more stays as it is: it must not break off the script that adds.
local function add(key, field, amount)
  redis.pcall('HINCRBY', key, field, amount)
end

-- Adds the amounts of a call to the totals, and to the usage of its tenant's day by the call's purpose too.
-- amounts: field, integer, field, integer, …   (field: provider|model|measure)
local function tally(key, row, amounts)
  local tenant = redis.call('HGET', key.turn or key.batch, 'tenant') or 'default'
  local day = key.usage .. tenant .. ':' .. int(math.floor(now_ms() / 86400000))
  local purpose = string.match(row, '"purpose":"(%w+)"') or ''
  for index = 1, #amounts, 2 do
    add(key.totals, amounts[index], amounts[index + 1])
    local whose, measure = string.match(amounts[index], '^(.*|)([^|]*)$')
    add(day, whose .. purpose .. '|' .. measure, amounts[index + 1])
  end
  redis.call('PEXPIRE', day, USAGE_MS)
end

-- Writes the final row of a provider call, once, and counts it.
local function settle(key, call_id, row, amounts)
  local before = redis.call('HGET', key.ledger, call_id)
  if before and string.find(before, '"outcome":"lost"', 1, true) then
    tally(key, before, { cjson.decode(before).provider .. '||calls:lost', -1 })
  elseif before and not string.find(before, '"outcome":"intended"', 1, true) then
    return
  end
  redis.call('HSET', key.ledger, call_id, row)
  tally(key, row, amounts)
end

-- Marks a call that a dead attempt left open; what it cost is not known. A model that never answered
-- has no totals of its own: its name may be a caller's invention.
local function lose(key, call_id, row)
  local changed, count = string.gsub(row, '"outcome":"intended"', '"outcome":"lost"', 1)
  if count == 0 then return end
  local call = cjson.decode(row)
  redis.call('HSET', key.ledger, call_id, changed)
  tally(key, row, { call.provider .. '||calls:lost', 1 })
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

-- Takes `count` values of ARGV from `at` on; returns them and the position behind them.
local function take(at, count)
  local values = {}
  for index = at, at + count - 1 do values[#values + 1] = ARGV[index] end
  return values, at + count
end

-- Makes a turn the conversation's active one, for a worker to be woken for.
local function make_ready(key, turn_id, now, wake_ms)
  redis.call('HSET', key.conv, 'active', turn_id)
  redis.call('ZADD', key.ready, int(now + wake_ms), turn_id)
end

-- Lets a turn live for as long as its conversation does, and the conversation from its last turn's end on.
local function age(key, turn_id, now, ttl_ms)
  local lives_ms = tonumber(redis.call('HGET', key.conv, 'ttl_ms') or 0)
  local keep_ms = int(lives_ms > 0 and math.min(lives_ms, tonumber(ttl_ms)) or ttl_ms)
  for _, word in ipairs({ 'turn', 'log', 'ledger' }) do redis.call('PEXPIRE', key[word], keep_ms) end
  redis.call('ZADD', key.turns, int(now + keep_ms), turn_id)
  if redis.call('HINCRBY', key.conv, 'open', -1) > 0 or lives_ms <= 0 then return end
  for _, word in ipairs({ 'conv', 'msgs', 'turns' }) do redis.call('PEXPIRE', key[word], int(lives_ms)) end
end

-- Ends a turn in a terminal state and hands out the conversation's next one.
-- Returns the id of that turn, or ''.
local function conclude(key, turn_id, state, result, events, channel, keep, ttl_ms, wake_ms)
  local now = now_ms()
  redis.call('HSET', key.turn, 'state', state, 'result', result, 'finished_at', int(now))
  redis.call('HDEL', key.turn, 'cancel', 'worker', 'question', 'paused')
  emit(key.turn, key.log, channel, keep, events)
  close_calls(key)
  redis.call('ZREM', key.leases, turn_id)
  redis.call('HDEL', key.fences, turn_id)
  redis.call('ZREM', key.ready, turn_id)
  redis.call('HDEL', key.wakes, turn_id)
  redis.call('ZREM', key.due, turn_id)
  age(key, turn_id, now, ttl_ms)
  if redis.call('HGET', key.conv, 'active') ~= turn_id then
    redis.call('LREM', key.fifo, 1, turn_id)
    return ''
  end
  local following = redis.call('LPOP', key.fifo)
  if following then
    make_ready(key, following, now, wake_ms)
  else
    redis.call('HDEL', key.conv, 'active')
  end
  return following or ''
end

-- Writes down who holds a slice of a batch. `slices` says under its first index
-- `<count>:<crashes>:<token>`, and under `token:<token>` that index.
local function hold_slice(key, batch_id, start, counts, token, until_ms)
  local slice = batch_id .. '/' .. int(start)
  redis.call('HSET', key.slices, int(start), counts .. ':' .. token, 'token:' .. token, int(start))
  redis.call('ZADD', key.leases, int(until_ms), slice)
  redis.call('HSET', key.fences, slice, redis.call('HINCRBY', key.batch, 'fence', 1))
  redis.call('HINCRBY', key.batch, 'running', 1)
  redis.call('HDEL', key.wakes, batch_id)
end

-- Takes a slice from whoever holds it; returns how many of the batch still run.
local function free_slice(key, batch_id, start)
  local token = string.match(redis.call('HGET', key.slices, start), '%w+$')
  redis.call('HDEL', key.slices, start, 'token:' .. token)
  redis.call('ZREM', key.leases, batch_id .. '/' .. start)
  redis.call('HDEL', key.fences, batch_id .. '/' .. start)
  return redis.call('HINCRBY', key.batch, 'running', -1)
end

-- Ends a batch and lets its keys expire.
local function end_batch(key, batch_id, state, ttl_ms)
  redis.call('HSET', key.batch, 'state', state, 'finished_at', int(now_ms()))
  redis.call('ZREM', key.ready, batch_id)
  redis.call('HDEL', key.wakes, batch_id)
  for _, name in ipairs({ 'batch', 'items', 'rows', 'slices', 'redo', 'ledger' }) do
    redis.call('PEXPIRE', key[name], ttl_ms)
  end
end
