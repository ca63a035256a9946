-- Stands before every script: the steps that several transitions share.
-- Time is Redis's own; all times are Unix milliseconds.

-- How long a day's usage is kept: 400 days.
local USAGE_MS = 34560000000
-- The keys that live and go with a conversation.
local LIVING = { 'conv', 'msgs', 'turns', 'history' }
-- How many messages wait for their summary at most, for one that comes too late: 4 windows and so many more.
local UNSUMMARIZED = 100

-- The keys that live and go with a batch.
local LASTING = { 'batch', 'items', 'rows', 'slices', 'redo', 'ledger', 'bad', 'again', 'order', 'parked', 'talks' }
-- The states in which nothing more happens to a batch.
local OVER = { completed = true, failed = true, expired = true, cancelled = true }
-- The numbers that the steps of a batch have instead of a first index.
local STEPS = { validate = -1, finalize = -2 }
-- What a batch's record calls the sums that the totals have by model.
local SUMS = { input = 'input_tokens', output = 'output_tokens', cached = 'cached_tokens',
  reasoning = 'reasoning_tokens', units = 'units', estimated = 'estimated', unpriced = 'unpriced' }

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
    dead = KEYS[13], turns = KEYS[14], convs = KEYS[15], usage = KEYS[16], history = KEYS[17] }
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
    wakes = KEYS[7], leases = KEYS[8], fences = KEYS[9], ledger = KEYS[10], totals = KEYS[11], usage = KEYS[12],
    due = KEYS[13], bad = KEYS[14], again = KEYS[15], order = KEYS[16], parked = KEYS[17], batches = KEYS[18],
    talks = KEYS[19] }
end

-- The keys of a schedule; the last five only where it posts to a conversation.
local function schedule_keys()
  return { schedule = KEYS[1], schedules = KEYS[2], crons = KEYS[3], gone = KEYS[4], planned = KEYS[5], conv = KEYS[6],
    msgs = KEYS[7], turns = KEYS[8], convs = KEYS[9], history = KEYS[10] }
end

-- Notes until when a conversation's schedules need it, and lets it live so long and its own time more.
local function stay(key, schedule_id)
  if redis.call('EXISTS', key.conv) == 0 then return end
  local latest = 0
  for _, other in ipairs(redis.call('ZRANGE', key.planned, 0, -1)) do
    local next_ms = redis.call('HGET', renamed(key.schedule, schedule_id, other), 'next_ms')
    latest = math.max(latest, tonumber(next_ms or '') or 0)
  end
  redis.call('HSET', key.conv, 'planned_ms', int(latest))
  local left, ahead = redis.call('PTTL', key.conv), math.max(0, latest - now_ms())
  local wanted = tonumber(redis.call('HGET', key.conv, 'ttl_ms') or 0) + ahead
  if left == -1 or wanted == left or (wanted > left and ahead == 0) then return end
  for _, word in ipairs(LIVING) do redis.call('PEXPIRE', key[word], int(wanted)) end
end

-- Says when a schedule fires next, '' for never, and which turn that will be.
local function plan(key, schedule_id, next_ms, next_turn)
  redis.call('HSET', key.schedule, 'next_ms', next_ms, 'next_turn', next_turn)
  if next_ms == '' then
    redis.call('ZREM', key.crons, schedule_id)
  else
    redis.call('ZADD', key.crons, next_ms, schedule_id)
  end
  if key.planned then stay(key, schedule_id) end
end

-- Takes a schedule away for good, and the turn that it would have posted next.
-- gone: the name of a tombstone but for its id
local function forget_schedule(key, schedule_id, gone, gone_ms)
  local next_turn = redis.call('HGET', key.schedule, 'next_turn')
  redis.call('SET', gone .. schedule_id, 1, 'PX', gone_ms)
  if next_turn and next_turn ~= '' then redis.call('SET', gone .. next_turn, 1, 'PX', gone_ms) end
  redis.call('DEL', key.schedule)
  redis.call('ZREM', key.schedules, schedule_id)
  redis.call('ZREM', key.crons, schedule_id)
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

-- Adds the amounts of a call to the totals, to the usage of its tenant's day by the call's purpose too, and to the
-- sums of its batch.
-- amounts: field, integer, field, integer, …   (field: provider|model|measure)
local function tally(key, row, amounts)
  local known = redis.call('HGET', key.turn or key.batch, 'tenant')
  local day = key.usage .. (known or 'default') .. ':' .. int(math.floor(now_ms() / 86400000))
  local purpose = string.match(row, '"purpose":"(%w+)"') or ''
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
  redis.call('HSET', key.ledger, call_id, stamped(row, at, string.match(before or '', '"attempt":(%d+)')))
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

-- Lets a turn live for as long as its conversation does, and the conversation from its last turn's end on, or
-- from when a schedule posts to it next.
local function age(key, turn_id, now, ttl_ms)
  local lives_ms = tonumber(redis.call('HGET', key.conv, 'ttl_ms') or 0)
  local keep_ms = int(lives_ms > 0 and math.min(lives_ms, tonumber(ttl_ms)) or ttl_ms)
  for _, word in ipairs({ 'turn', 'log', 'ledger' }) do redis.call('PEXPIRE', key[word], keep_ms) end
  redis.call('ZADD', key.turns, int(now + keep_ms), turn_id)
  if redis.call('HINCRBY', key.conv, 'open', -1) > 0 or lives_ms <= 0 then return end
  local planned_ms = tonumber(redis.call('HGET', key.conv, 'planned_ms') or 0)
  local stay_ms = int(lives_ms + math.max(0, planned_ms - now))
  for _, word in ipairs(LIVING) do redis.call('PEXPIRE', key[word], stay_ms) end
end

-- The keys of a conversation's history: what is remembered, and what was.
local function conversation_keys()
  return { conv = KEYS[1], msgs = KEYS[2], history = KEYS[3] }
end

-- Adds messages to memory.
local function remember(key, messages)
  for start = 1, #messages, 500 do
    redis.call('RPUSH', key.msgs, unpack(messages, start, math.min(start + 499, #messages)))
  end
end

-- Gives a conversation its next version, which stands in `history` under its number. `more` is what only this
-- kind has, `summary` the version whose summary it goes on from, 0 for none.
local function add_version(key, kind, more, summary)
  local number = redis.call('HINCRBY', key.conv, 'head', 1)
  redis.call('HSET', key.history, number, '{"kind":"' .. kind .. '","at":' .. int(now_ms()) .. more .. ',"messages":'
    .. redis.call('LLEN', key.msgs) .. ',"summary":' .. summary .. '}')
  return number
end

-- A conversation that came with messages, or had them before there were versions, begins with one that holds all.
local function adopt(key)
  if redis.call('HEXISTS', key.conv, 'head') == 1 or redis.call('EXISTS', key.msgs) == 0 then return end
  redis.call('HSET', key.conv, 'baseline', add_version(key, 'snapshot', '', 0))
end

-- Lets what was made anew live as long as its conversation.
local function settle_lives(key)
  local left = redis.call('PTTL', key.conv)
  if left < 0 then return end
  for _, word in ipairs({ 'msgs', 'history' }) do redis.call('PEXPIRE', key[word], left) end
end

-- The version that made this one what it is, past all checkouts; its number and what is known of it.
local function resolved(key, number)
  while number > 0 do
    local version = cjson.decode(redis.call('HGET', key.history, int(number)))
    if not version.to then return number, version end
    number = version.to
  end
  return 0, { messages = 0, summary = 0 }
end

-- The numbers of head and baseline, or a refusal of a version that is not between them.
local function bounds(key, number)
  local head = tonumber(redis.call('HGET', key.conv, 'head') or 0)
  local baseline = tonumber(redis.call('HGET', key.conv, 'baseline') or 0)
  local refusal
  if number and (number > head or number < 0) then
    refusal = { 'unknown', head, baseline }
  elseif number and number < baseline then
    refusal = { 'compacted', head, baseline }
  end
  return head, baseline, refusal
end

local function reversed(values)
  local turned = {}
  for index = #values, 1, -1 do turned[#turned + 1] = values[index] end
  return turned
end

-- The versions that have to be taken, the latest first, and those to be added, the oldest first, to get from one
-- version to another.
local function way(key, from, to)
  local taken, added = {}, {}
  from, to = (resolved(key, from)), (resolved(key, to))
  while from ~= to do
    if from > to then
      taken[#taken + 1] = from
      from = resolved(key, from - 1)
    else
      added[#added + 1] = to
      to = resolved(key, to - 1)
    end
  end
  return taken, reversed(added)
end

-- The messages of a version's own turn: memory has them, or has left them.
local function messages_of(key, number)
  local left, found = redis.call('HGET', key.history, 'messages:' .. int(number)), {}
  if left then
    for message in string.gmatch(left, '[^\n]+') do found[#found + 1] = message end
    return found
  end
  local _, version = resolved(key, number)
  local first = 0
  if version.kind ~= 'snapshot' then
    local _, before = resolved(key, number - 1)
    first = before.messages
  end
  return redis.call('LRANGE', key.msgs, int(first), int(version.messages - 1))
end

-- The version under whose number the summary stands that holds at this one; 0 for none.
local function summary_of(key, number, version)
  return redis.call('HEXISTS', key.history, 'summary:' .. int(number)) == 1 and int(number) or int(version.summary)
end

-- Lets a summary stand for the first `count` messages from this version on.
local function keep_summary(key, number, count, text)
  redis.call('HSET', key.history, 'summary:' .. int(number), count .. '\n' .. text)
  redis.call('HSET', key.conv, 'summary', int(number))
end

-- How many messages a summary stands for, and its text.
local function read_summary(key, number)
  local stored = number and redis.call('HGET', key.history, 'summary:' .. number)
  if not stored then return 0, '' end
  local count, text = string.match(stored, '^(%d+)\n(.*)$')
  return tonumber(count), text
end

-- Where the messages begin that a turn is shown, and the summary of what was before.
local function window(key, memory, memory_k, number)
  local count = redis.call('LLEN', key.msgs)
  if memory == 'none' then return count, '' end
  if memory ~= 'summary' then return math.max(count - memory_k, 0), '' end
  local covered, summary = read_summary(key, number)
  return math.max(covered, count - 4 * memory_k - UNSUMMARIZED), summary
end

-- How many messages are kept that memory has left.
local function left_behind(key)
  local count, fields = 0, redis.call('HGETALL', key.history)
  for index = 1, #fields, 2 do
    if string.find(fields[index], 'messages:', 1, true) == 1 then
      count = count + 1 + select(2, string.gsub(fields[index + 1], '\n', ''))
    end
  end
  return count
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

-- Lists a row that was stored just now, behind its index `:<how often the item was retried>`: a row that was taken out
-- again to be made anew stands in the list with a number that is no longer the item's.
local function list_row(key, index)
  local tried = redis.call('HGET', key.slices, 'try:' .. index)
  redis.call('RPUSH', key.order, tried and index .. ':' .. tried or index)
end

-- Counts a row that was stored just now.
local function count_row(key, index, ok)
  redis.call('HINCRBY', key.batch, ok and 'completed' or 'failed', 1)
  list_row(key, index)
  if not ok then redis.call('RPUSH', key.bad, index) end
end

-- Lets an item wait for the row of an earlier one: `parked` holds under the earlier index how many wait, and under
-- `<earlier index>:<number>` who does and as what: its entry where it repeats that one, `>` where it goes on from it.
local function park(key, earlier, index, as)
  local number = redis.call('HINCRBY', key.parked, earlier, 1)
  redis.call('HSET', key.parked, earlier .. ':' .. number, index .. as)
end

-- Gives an item that repeats an earlier one its row, which is its entry, behind a `!` where the earlier one has
-- failed; or lets it wait for the earlier one's.
local function repeat_row(key, earlier, index, item)
  local row = redis.call('HGET', key.rows, earlier)
  if not row then return park(key, earlier, index, item) end
  local ok = string.match(row, '"status":"(%w+)"') == 'ok'
  if redis.call('HSETNX', key.rows, index, ok and item or '!' .. item) == 0 then return end
  count_row(key, index, ok)
  if ok then redis.call('HINCRBY', key.batch, 'saved', 1) end
end

-- Gives their rows to those that wait for an item whose row is there now; who goes on a conversation with it is run.
local function unpark(key, earlier)
  local count = tonumber(redis.call('HGET', key.parked, earlier) or 0)
  if count == 0 then return end
  redis.call('HDEL', key.parked, earlier)
  for number = 1, count do
    local name = earlier .. ':' .. number
    local index, item = string.match(redis.call('HGET', key.parked, name), '^(%d+)([=>].*)$')
    redis.call('HDEL', key.parked, name)
    if item == '>' then
      redis.call('RPUSH', key.redo, index .. ':1:0')
    else
      repeat_row(key, earlier, index, item)
    end
  end
end

-- Forgets the call that the claim of a slice has entered for an item, and that was not made.
local function forget_call(key, batch_id, start, index)
  local token = string.match(redis.call('HGET', key.slices, start), '%w+$')
  local call_id = batch_id .. '.' .. token .. '.' .. index .. '.1'
  local row = redis.call('HGET', key.ledger, call_id)
  if row then unmake(key, call_id, row) end
end

-- Puts the items of a slice that have no row into the list of what is to be done, each by itself.
local function keep_for_later(key, start, crashes)
  local count = tonumber(string.match(redis.call('HGET', key.slices, start), '^(%d+)'))
  for index = tonumber(start), tonumber(start) + count - 1 do
    if redis.call('HEXISTS', key.rows, int(index)) == 0 then
      redis.call('RPUSH', key.redo, int(index) .. ':1:' .. crashes)
    end
  end
end

-- The row of an item whose conversation was erased; of the item only the caller's own id is left.
local function erased_row(index, item)
  local read, told = pcall(cjson.decode, item)
  local own = read and type(told) == 'table' and type(told.id) == 'string' and cjson.encode(told.id) or 'null'
  return '{"index":' .. int(index) .. ',"id":' .. own .. ',"status":"error","error":{"code":"conversation_erased",'
    .. '"message":"the conversation was erased","retryable":false},"attempts":0}'
end

-- Ends a batch and lets its keys expire.
local function end_batch(key, batch_id, state, ttl_ms)
  redis.call('HSET', key.batch, 'state', state, 'finished_at', int(now_ms()))
  redis.call('HDEL', key.batch, 'step', 'ends_as', 'paused_at', 'waits_until', 'left')
  redis.call('ZREM', key.ready, batch_id)
  redis.call('ZREM', key.due, batch_id)
  redis.call('HDEL', key.wakes, batch_id)
  for _, name in ipairs(LASTING) do redis.call('PEXPIRE', key[name], ttl_ms) end
end

-- What becomes of a batch now that a row or a slice is in: it goes on; or it ends; or, where it came as a file, the
-- files of its results are to be written. Returns its state.
local function go_on(key, batch_id, ttl_ms, wake_ms)
  local record = redis.call('HMGET', key.batch, 'state', 'total', 'completed', 'failed', 'running', 'step', 'input_file')
  local state, idle = record[1], tonumber(record[5]) == 0
  if record[6] or OVER[state] then return state end
  local done = tonumber(record[3]) + tonumber(record[4]) == tonumber(record[2]) and redis.call('EXISTS', key.again) == 0
  local ends_as
  if state == 'in_progress' and done then
    ends_as = 'completed'
  elseif state == 'cancelling' and (done or idle) then
    ends_as = 'cancelled'
  elseif state == 'finalizing' and idle then
    ends_as = 'expired'
  else
    return state
  end
  if not record[7] then
    end_batch(key, batch_id, ends_as, ttl_ms)
    return ends_as
  end
  local now = now_ms()
  if ends_as == 'completed' then
    state = 'finalizing'
    redis.call('HSET', key.batch, 'state', state, 'finalizing_at', int(now))
    redis.call('ZREM', key.due, batch_id)
  end
  redis.call('HSET', key.batch, 'step', 'finalize', 'ends_as', ends_as)
  redis.call('ZADD', key.ready, int(now + tonumber(wake_ms)), batch_id)
  return state
end

-- Notes until when an answer, or who asks for it, is there, and forgets those that are gone.
local function list_answer(answers, digest, now, lives_ms)
  redis.call('ZREMRANGEBYSCORE', answers, '-inf', int(now))
  local known = tonumber(redis.call('ZSCORE', answers, digest) or 0)
  redis.call('ZADD', answers, int(math.max(known, now + tonumber(lives_ms))), digest)
  if redis.call('PTTL', answers) < tonumber(lives_ms) then redis.call('PEXPIRE', answers, lives_ms) end
end

-- How long a budget is remembered that nobody uses, where its owner does not end sooner.
local BUDGET_MS = 34560000000

-- Lets a budget be remembered for at least so long.
local function remember_for(name, keep_ms)
  if redis.call('PTTL', name) < keep_ms then redis.call('PEXPIRE', name, int(keep_ms)) end
end

-- What was used of a budget in its present window, and what is held for calls under way. It is remembered until the
-- window ends, and for as long as its owner `lives`, which whoever reserves says and the budget knows from then on.
local function in_window(name, field, seconds, now, lives)
  local window = seconds > 0 and int(math.floor(now / (seconds * 1000))) or '0'
  local left = seconds > 0 and seconds * 1000 - now % (seconds * 1000) or 0
  local known = redis.call('HMGET', name, field .. ':window', field .. ':used', field .. ':held', 'lives')
  if lives and lives ~= known[4] then redis.call('HSET', name, 'lives', lives) end
  if known[1] ~= window then redis.call('HSET', name, field .. ':window', window, field .. ':used', 0) end
  remember_for(name, math.max(left, tonumber(lives or known[4] or BUDGET_MS)))
  return known[1] == window and tonumber(known[2] or 0) or 0, tonumber(known[3] or 0)
end

-- Writes down as used what a call took by measure, or what counts where nobody can tell; returns in how many budgets.
local function spend(calls, until_, call_id, prefix, now, took)
  local budgets = 0
  local reserved = (redis.call('HGET', calls, call_id) or '') .. '\n\n'
  for scope, field, need, lost in string.gmatch(reserved, '(.-)\n(.-)\n(%d+) ?(%d*)\n\n') do
    local name, measure, seconds = prefix .. scope, string.match(field, '^(%l+):(%d+)$')
    if need ~= '0' then redis.call('HINCRBY', name, field .. ':held', '-' .. need) end
    in_window(name, field, tonumber(seconds), now)
    redis.call('HINCRBY', name, field .. ':used', took and took[measure] or (lost ~= '' and lost or need))
    budgets = budgets + 1
  end
  redis.call('HDEL', calls, call_id)
  redis.call('ZREM', until_, call_id)
  return budgets
end
