-- Takes what a process has to say of one model: calls that ended are settled, then it asks for places.
-- A step that is repeated after a lost reply gives the same reply again and changes nothing.
-- KEYS record chats batches (who holds a place, by until when) models unwell (names, by their last step) step
-- ARGV name process number permit_ms channel, requests_per_minute tokens_per_minute concurrency (0 for none)
--      burst_ms batch_share batch_floor, failures pause_ms (to an open circuit, and its first length)
--      jitter (what is added to a pause, as a share of it) in_flight (of the process) answered told_ms (calls
--      that it had answered unasked, and over how long), ended chats batches (how many), then the ended calls as
--      permit ('' for a call that needed none), ok | limited | overloaded | failed | none,
--      tokens beyond the estimate, retry_after_ms or '', then the estimated tokens of each chat and batch item
-- Returns { chats, batches (how many may begin), ms to wait, the reason or '', 1 when the model is well }
--
-- Refusals are a limit, and no noise, when in recent calls there are more than NOISE and a tenth of all. A limit's
-- Retry-After holds for everyone, and the pace is cut to what was answered, once for all the calls that were under
-- way. It comes back quickly to where it is known to be good, stays there (each time longer), then grows ever faster.
-- Of noise the same is believed until it has taken PAUSED_MS of the last seconds; beyond that it holds for its own
-- call only, and it slows down nobody.
local RECORD_MS, WINDOW_MS, CHATS_MS = 3600000, 30000, 10000
local COOL_MS, LONGEST_MS = 500, 120000
local MEMORY_MS, NOISE, NOISE_SHARE = 5000, 3, 0.1
local LEAST, CUT, STEEP, HEADROOM, TRIM, TRIMS, UNSURE, PAUSED_MS = 0.002, 0.5, 0.75, 0.95, 0.96, 3, 32, 250
local HOLD_MS, LONGEST_HOLD_MS, RAMP_MS, RAMP = 4000, 32000, 1000, 0.4
local ITEM_MS = 250
local name, process, number, permit_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local rpm, tpm, concurrency, burst_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local share, floor, failures, in_flight = tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[15])
local longer, now = 1 + tonumber(ARGV[14]), now_ms()

local known = redis.call('GET', KEYS[6])
if known then
  local asked, reply = string.match(known, '^(%S+) (.*)$')
  if asked == number then return cjson.decode(reply) end
end

local FIELDS = { 'open_until', 'opens', 'cool_until', 'cools', 'ramp_ms', 'factor', 'mark', 'cut_at', 'judged_until', 'hold_ms',
  'trims', 'silent', 'grown_at', 'base', 'won', 'lost', 'paused', 'aged_at', 'counted_at', 'failures', 'since', 'good', 'bad',
  'next_request', 'next_token', 'next_item', 'next_item_token', 'chat_seen', 'chat_waits', 'item_waits', 'item_cost', 'owed' }
local read, at = redis.call('HMGET', KEYS[1], 'state', 'probe', unpack(FIELDS)), {}
local state, probe = read[1] or 'closed', read[2] or ''
for index, field in ipairs(FIELDS) do at[field] = tonumber(read[index + 2] or '') or 0 end
if at.factor == 0 then at.factor = 1 end
for _, held in ipairs({ KEYS[2], KEYS[3] }) do redis.call('ZREMRANGEBYSCORE', held, '-inf', int(now)) end

-- What was answered and refused lately; older calls count less and less.
if at.counted_at == 0 then at.counted_at = now end
local faded = math.exp(-math.max(0, now - at.aged_at) / MEMORY_MS)
at.won, at.lost, at.paused, at.aged_at = at.won * faded, at.lost * faded, at.paused * faded, now

local function a_second(answers, ms)
  return answers * 1000 / (MEMORY_MS * (1 - math.exp(-math.max(1000, ms) / MEMORY_MS)))
end

-- What the process had answered unasked; who tells of it behind a cut makes up for what the cut did not know.
local told, told_ms = tonumber(ARGV[16]), tonumber(ARGV[17])
if told > 0 and at.cut_at > 0 and now - at.cut_at < MEMORY_MS then
  if rpm == 0 then at.base = at.base + 2 * a_second(told, told_ms) end
else
  at.won, at.counted_at = at.won + told, math.min(at.counted_at, now - told_ms)
end

-- Answers a second, as far as is known; before anything is, what the process has under way.
local function delivered()
  if at.won < 1 then return math.max(1, in_flight) end
  return math.max(1, a_second(at.won, now - at.counted_at))
end

local function open()
  at.opens, state, probe = at.opens + 1, 'open', ''
  at.open_until = now + math.min(tonumber(ARGV[13]) * 2 ^ (at.opens - 1), LONGEST_MS) * longer
end

local function pause(ms)
  local from, to = math.max(now, at.cool_until), now + ms * longer
  if to > from then at.cool_until, at.ramp_ms, at.paused = to, math.min(ms, RAMP_MS), at.paused + to - from end
end

-- Where nothing tells how many answers there can be, the pace begins low, and what is good is found by growing. When
-- nothing at all is answered, the pauses do it: of the right pace that says nothing.
local function cut()
  if at.silent == 0 then
    local whole, answered = at.factor, at.won / (at.won + at.lost)
    at.silent = at.won < 1 and 1 or 0
    if rpm == 0 and whole == 1 then
      local sure = at.silent == 0 and now - at.counted_at >= MEMORY_MS
      at.base = delivered() * (sure and 1 / CUT or UNSURE)
      at.factor = sure and CUT * HEADROOM or 1 / UNSURE
      at.mark = sure and at.factor or 1
    else
      if whole < at.mark then answered = math.min(answered, STEEP) end
      at.factor = math.max(LEAST, whole * math.max(CUT, answered) * HEADROOM)
      at.mark = at.silent == 1 and whole or at.factor
    end
    at.hold_ms = math.max(HOLD_MS, at.hold_ms)
  end
  at.won, at.lost, at.counted_at, at.cut_at, at.grown_at, at.trims = 0, 0, now, now, now, 0
end

-- The pace has grown beyond what is allowed; refusals that slowing down does not end have nothing to do with it.
local function trim()
  if now - at.cut_at < 1000 then return end
  if now - at.cut_at > at.hold_ms then
    at.trims, at.hold_ms = 0, math.min(2 * at.hold_ms, LONGEST_HOLD_MS)
  end
  if at.trims == TRIMS then return end
  at.factor, at.trims = math.max(LEAST, at.factor * TRIM), at.trims + 1
  at.mark, at.cut_at, at.grown_at = at.factor, now, now
end

-- Without a Retry-After everyone waits when more is refused than answered, each time twice as long.
local function judge(refused, retry_after_ms)
  at.lost = at.lost + refused
  local limit = at.silent == 1 or at.lost > NOISE + NOISE_SHARE * (at.won + at.lost)
  local mostly, anew = limit or at.lost > at.won, now >= at.judged_until
  if anew and limit then cut() elseif at.factor < 1 and at.factor >= at.mark then trim() end
  if retry_after_ms then
    if mostly or at.paused <= PAUSED_MS or now < at.cool_until then pause(retry_after_ms) end
  elseif anew and mostly then
    at.cools = at.cools + 1
    pause(math.min(COOL_MS * 2 ^ (at.cools - 1), LONGEST_MS))
  end
  if anew and mostly then at.judged_until = math.max(now + 250, at.cool_until) end
end

local function grow()
  local ms = math.min(now - at.grown_at, RAMP_MS)
  at.grown_at = now
  if at.factor < at.mark then
    at.factor = math.min(at.mark, at.factor * 4 ^ (ms / 1000))
  else
    local late = (now - at.cut_at - at.hold_ms) / 1000
    if late > 0 then at.factor = at.factor * math.min(2, 1 + 0.02 * 2 ^ math.min(late / 2, 10)) ^ (ms / 1000) end
    at.mark = at.factor
  end
  if at.factor >= 1 then at.factor, at.mark, at.hold_ms, at.trims = 1, 0, 0, 0 end
end

local function succeed(permit)
  at.failures, at.good, at.won = 0, at.good + 1, at.won + 1
  if permit ~= '' and permit == probe then
    state, probe, at.opens, at.good, at.bad = 'closed', '', 0, 0, 0
    if at.base == 0 then at.base = 2 * delivered() end
    at.factor, at.mark, at.cut_at, at.grown_at = math.min(at.factor, CUT), 1, now, now
  end
  if now < at.cool_until then return end
  if at.silent == 1 then at.next_request = math.min(at.next_request, now) end
  at.cools, at.silent = 0, 0
  if at.factor < 1 then grow() end
end

local function fail(permit)
  at.failures, at.bad = at.failures + 1, at.bad + 1
  local often = at.bad >= 2 * failures and at.bad >= at.good
  if permit ~= '' and permit == probe or state == 'closed' and (at.failures >= failures or often) then open() end
end

local place = 21
local function take_next()
  place = place + 1
  return ARGV[place - 1]
end

if now - at.since > WINDOW_MS then at.since, at.good, at.bad = now, 0, 0 end
local refused, longest = 0, nil
for _ = 1, tonumber(ARGV[18]) do
  local permit, outcome, beyond, retry_after_ms = take_next(), take_next(), tonumber(take_next()), tonumber(take_next())
  local of_chats = redis.call('ZREM', KEYS[2], permit) > 0
  local of_items = not of_chats and redis.call('ZREM', KEYS[3], permit) > 0
  if permit == '' or of_chats or of_items then
    if tpm > 0 and permit ~= '' then
      at.next_token = at.next_token + beyond * 60000 / tpm
      if of_items then at.next_item_token = at.next_item_token + beyond * 60000 / tpm / share end
    end
    if outcome == 'ok' then succeed(permit) end
    if outcome == 'failed' or outcome == 'overloaded' then fail(permit) end
    if outcome == 'limited' or outcome == 'overloaded' then
      refused = refused + 1
      if retry_after_ms then longest = math.max(longest or 0, retry_after_ms) end
    end
    if permit == probe then probe = '' end
  end
end
if refused > 0 then judge(refused, longest) end

-- Who asks finds the circuit open, half open (then one call is let through), or the model cooling.
if state == 'open' and now >= at.open_until then state, probe = 'half_open', '' end
local probing = state == 'half_open'
local holds = probe ~= '' and (redis.call('ZSCORE', KEYS[2], probe) or redis.call('ZSCORE', KEYS[3], probe))
local wait_ms, reason = 0, ''
if state == 'open' then
  wait_ms, reason = at.open_until - now, 'open'
elseif now < at.cool_until then
  wait_ms, reason = at.cool_until - now, 'cooling'
elseif probing and holds then
  wait_ms, reason = 250, 'probing'
end

-- After a pause the pace comes back over as long again, and slower still while nothing is answered.
local ramped_ms = math.max(0, now - at.cool_until)
local ramp = ramped_ms < at.ramp_ms and RAMP + (1 - RAMP) * ramped_ms / at.ramp_ms or 1
local pace, base = at.factor * ramp, at.base
if at.factor == 1 and ramp < 1 then base = 2 * delivered() end
local paced_ms = rpm > 0 and 60000 / (rpm * pace) or pace < 1 and 1000 / (base * pace) or 0
if at.silent == 1 then paced_ms = math.max(paced_ms, 1000) end
local token_ms = tpm > 0 and 60000 / (tpm * pace) or 0
local width = concurrency > 0 and math.max(1, math.floor(concurrency * at.factor)) or math.huge
local counts = { redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]) }
local with_chats = tonumber(ARGV[19]) > 0 or now - at.chat_seen < CHATS_MS
if now >= at.item_waits then at.owed = 0 end

-- What a call takes of the pace, in ms, or of the places.
local function cost(tokens)
  local ms = math.max(paced_ms, tokens * token_ms)
  return ms > 0 and ms or 1
end

-- Whether an item has waited so long for chats that one is due.
local function due() return now < at.item_waits and at.owed * 1.001 >= at.item_cost end

-- How long one more call has to wait, and why; nothing when it may begin.
local function hindered(batch)
  if counts[1] + counts[2] >= width - (not batch and due() and 1 or 0) then return 100, 'concurrency' end
  if batch and due() then return end
  if batch and now < at.chat_waits then return math.min(at.chat_waits - now, ITEM_MS), 'chats' end
  local early = math.max(at.next_request, at.next_token) - now - burst_ms
  if early > 0 then return early, at.next_request >= at.next_token and 'requests' or 'tokens' end
  if not (batch and with_chats) then return end
  if counts[2] >= math.max(1, math.floor(width * share)) then return 100, 'share' end
  early = math.max(at.next_item, at.next_item_token) - now - burst_ms
  if early > 0 then return early, 'share' end
end

local granted, stopped = { 0, 0 }, { reason ~= '', reason ~= '' }
local function admit(lane, tokens)
  if stopped[lane] then return end
  local early, why = hindered(lane == 2)
  if why then
    stopped[lane] = true
    wait_ms = reason == '' and early or math.min(wait_ms, early)
    if reason == '' then reason = why end
    return
  end
  granted[lane], counts[lane] = granted[lane] + 1, counts[lane] + 1
  local permit = process .. '.' .. number .. (lane == 1 and '.c' or '.b') .. granted[lane]
  redis.call('ZADD', KEYS[lane + 1], int(now + permit_ms), permit)
  at.next_request = math.max(at.next_request, now) + paced_ms
  at.next_token = math.max(at.next_token, now) + tokens * token_ms
  if lane == 2 then
    at.next_item = math.max(at.next_item, now) + paced_ms / share
    at.next_item_token = math.max(at.next_item_token, now) + tokens * token_ms / share
    at.owed = math.max(0, at.owed - cost(tokens))
  elseif now < at.item_waits and floor > 0 then
    at.owed = math.min(at.owed + cost(tokens) * floor / (1 - floor), at.item_cost)
  end
  if probing then
    probe, wait_ms, reason, stopped = permit, 250, 'probing', { true, true }
  end
end

local wanted = { tonumber(ARGV[19]), tonumber(ARGV[20]) }
for lane = 1, 2 do
  for index = 1, wanted[lane] do
    local tokens = tonumber(take_next())
    if lane == 2 and index == 1 then at.item_cost = cost(tokens) end
    admit(lane, tokens)
  end
  local until_ms = now + math.min(wait_ms, 1000) + 50
  if lane == 1 and wanted[1] > 0 then
    at.chat_seen = now
    if granted[1] < wanted[1] then at.chat_waits = until_ms end
  elseif lane == 2 and wanted[2] > 0 then
    if granted[2] < wanted[2] then at.item_waits = until_ms end
  end
end

local well = state == 'closed' and at.failures == 0 and now >= at.cool_until and ramp == 1 and at.factor == 1 and at.silent == 0
local values = { 'name', name, 'state', state, 'probe', probe, 'rpm', rpm, 'tpm', tpm, 'concurrency', concurrency }
for _, field in ipairs(FIELDS) do
  values[#values + 1], values[#values + 2] = field, string.format('%.6f', at[field])
end
redis.call('HSET', KEYS[1], unpack(values))
for index = 1, 3 do redis.call('PEXPIRE', KEYS[index], RECORD_MS) end
redis.call('ZADD', KEYS[4], int(now), name)
for index = 4, 5 do redis.call('ZREMRANGEBYSCORE', KEYS[index], '-inf', int(now - RECORD_MS)) end
local changed
if well then changed = redis.call('ZREM', KEYS[5], name) else changed = redis.call('ZADD', KEYS[5], int(now), name) end
if changed == 1 then redis.call('PUBLISH', ARGV[5], name .. (well and ' 1' or ' 0')) end
local reply = { granted[1], granted[2], math.ceil(wait_ms), reason, well and 1 or 0 }
redis.call('SET', KEYS[6], number .. ' ' .. cjson.encode(reply), 'PX', 60000)
return reply
