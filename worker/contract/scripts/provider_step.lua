-- Takes what a process has to say of one model: calls that ended are settled, then it asks for places.
-- A step that is repeated after a lost reply gives the same reply again and changes nothing.
-- KEYS record chats batches (who holds a place, by until when) models unwell (names, by their last step) step
-- ARGV name process number permit_ms channel, requests_per_minute tokens_per_minute concurrency (0 for none)
--      burst_ms batch_share, failures pause_ms (to an open circuit, and its first length) jitter_ms in_flight
--      (of the process), ended chats batches (how many), then the ended calls as
--      permit ('' for a call that needed none), ok | limited | overloaded | failed | none,
--      tokens beyond the estimate, retry_after_ms or '', then the estimated tokens of each chat and batch item
-- Returns { chats, batches (how many may begin), ms to wait, the reason or '', 1 when the model is well }
local RECORD_MS, WINDOW_MS, CHATS_MS = 3600000, 30000, 10000
local COOL_MS, LONGEST_MS = 500, 120000
local LEAST, CUT, GROWTH, SLOWEST = 0.02, 0.5, 0.1, 0.02
local name, process, number, permit_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local rpm, tpm, concurrency, burst_ms, share = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local jitter_ms, now = tonumber(ARGV[13]), now_ms()

local known = redis.call('GET', KEYS[6])
if known then
  local asked, reply = string.match(known, '^(%S+) (.*)$')
  if asked == number then return cjson.decode(reply) end
end

local FIELDS = { 'open_until', 'opens', 'cool_until', 'cools', 'factor', 'growth', 'grown_at', 'base', 'failures', 'since',
  'good', 'bad', 'next_request', 'next_token', 'next_item', 'chat_seen', 'chat_waits' }
local read, at = redis.call('HMGET', KEYS[1], 'state', 'probe', unpack(FIELDS)), {}
local state, probe = read[1] or 'closed', read[2] or ''
for index, field in ipairs(FIELDS) do at[field] = tonumber(read[index + 2] or '') or 0 end
if not read[7] then at.factor = 1 end
for _, held in ipairs({ KEYS[2], KEYS[3] }) do redis.call('ZREMRANGEBYSCORE', held, '-inf', int(now)) end

local function open()
  at.opens, state, probe = at.opens + 1, 'open', ''
  at.open_until = now + math.min(tonumber(ARGV[12]) * 2 ^ (at.opens - 1), LONGEST_MS) + jitter_ms
end

-- Everyone waits; the pace is halved once for all the calls that were under way.
local function cool(retry_after_ms)
  if now >= at.cool_until then
    at.cools, at.factor = at.cools + 1, math.max(LEAST, at.factor * CUT)
    at.growth, at.grown_at = math.max(at.factor * GROWTH, SLOWEST), now
    if at.base == 0 then at.base = 2 * math.max(1, tonumber(ARGV[14])) end
  end
  local pause = tonumber(retry_after_ms) or math.min(COOL_MS * 2 ^ (at.cools - 1), LONGEST_MS)
  at.cool_until = math.max(at.cool_until, now + pause + jitter_ms)
end

local function succeed(permit)
  at.failures, at.good = 0, at.good + 1
  if permit ~= '' and permit == probe then
    state, probe, at.opens, at.good, at.bad = 'closed', '', 0, 0, 0
    at.factor, at.growth, at.grown_at = math.min(at.factor, CUT), CUT * GROWTH, now
    if at.base == 0 then at.base = 2 * math.max(1, tonumber(ARGV[14])) end
  elseif at.factor < 1 and now >= at.cool_until then
    at.factor = math.min(1, at.factor + at.growth * math.min(now - at.grown_at, 5000) / 1000)
    at.grown_at = now
    if at.factor == 1 then at.cools = 0 end
  end
end

local function fail(permit)
  at.failures, at.bad = at.failures + 1, at.bad + 1
  local often = at.bad >= 2 * tonumber(ARGV[11]) and at.bad >= at.good
  if permit ~= '' and permit == probe or state == 'closed' and (at.failures >= tonumber(ARGV[11]) or often) then open() end
end

local place = 18
local function take_next()
  place = place + 1
  return ARGV[place - 1]
end

if now - at.since > WINDOW_MS then at.since, at.good, at.bad = now, 0, 0 end
for _ = 1, tonumber(ARGV[15]) do
  local permit, outcome, beyond, retry_after_ms = take_next(), take_next(), tonumber(take_next()), take_next()
  local held = permit == '' or redis.call('ZREM', KEYS[2], permit) + redis.call('ZREM', KEYS[3], permit) > 0
  if held then
    if tpm > 0 and permit ~= '' then at.next_token = at.next_token + beyond * 60000 / tpm end
    if outcome == 'ok' then succeed(permit) end
    if outcome == 'failed' or outcome == 'overloaded' then fail(permit) end
    if outcome == 'limited' or outcome == 'overloaded' then cool(retry_after_ms) end
    if permit == probe then probe = '' end
  end
end

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

local paced_ms = rpm > 0 and 60000 / (rpm * at.factor) or at.factor < 1 and 1000 / (at.base * at.factor) or 0
local token_ms = tpm > 0 and 60000 / (tpm * at.factor) or 0
local width = concurrency > 0 and math.max(1, math.floor(concurrency * at.factor)) or math.huge
local counts = { redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]) }
local with_chats = tonumber(ARGV[16]) > 0 or now - at.chat_seen < CHATS_MS

-- How long one more call has to wait, and why; nothing when it may begin.
local function hindered(batch)
  if counts[1] + counts[2] >= width then return 100, 'concurrency' end
  local early = math.max(at.next_request, at.next_token) - now - burst_ms
  if early > 0 then return early, at.next_request >= at.next_token and 'requests' or 'tokens' end
  if not (batch and with_chats) then return end
  if counts[2] >= math.max(1, math.floor(width * share)) then return 100, 'share' end
  if paced_ms > 0 and at.next_item - now > burst_ms then return at.next_item - now - burst_ms, 'share' end
end

local granted = { 0, 0 }
local function admit(lane, tokens)
  if reason ~= '' then return end
  if lane == 2 and now < at.chat_waits then
    wait_ms, reason = at.chat_waits - now, 'chats'
    return
  end
  local early, why = hindered(lane == 2)
  if why then
    wait_ms, reason = early, why
    return
  end
  granted[lane], counts[lane] = granted[lane] + 1, counts[lane] + 1
  local permit = process .. '.' .. number .. (lane == 1 and '.c' or '.b') .. granted[lane]
  redis.call('ZADD', KEYS[lane + 1], int(now + permit_ms), permit)
  at.next_request = math.max(at.next_request, now) + paced_ms
  at.next_token = math.max(at.next_token, now) + tokens * token_ms
  if lane == 2 then at.next_item = math.max(at.next_item, now) + paced_ms / share end
  if probing then
    probe, wait_ms, reason = permit, 250, 'probing'
  end
end

for lane = 1, 2 do
  local wanted = tonumber(ARGV[15 + lane])
  for _ = 1, wanted do admit(lane, tonumber(take_next())) end
  if lane == 1 and wanted > 0 then
    at.chat_seen = now
    if granted[1] < wanted then at.chat_waits = now + math.min(wait_ms, 1000) + 50 end
  end
end

local well = state == 'closed' and at.failures == 0 and now >= at.cool_until and at.factor == 1
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
