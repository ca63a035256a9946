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
-- What the record holds stands in steps/model.lua; how its pace is found in steps/pace.lua.

local RECORD_MS = 3600000 -- how long a model is remembered that nobody asks for
local REPLY_MS = 60000 -- how long a step can be repeated
local CHATS_MS = 10000 -- how long chats are about after the last one
local FULL_MS = 100 -- when to ask again where all places are taken
local ITEM_MS = 250 -- when to ask again at the latest where chats go first
local ASKED_MS, LATE_MS = 1000, 50 -- within what time who waits asks again, and how late that may be
local SAID = { 'permit_ms', 'channel', 'rpm', 'tpm', 'concurrency', 'burst_ms', 'share', 'floor', 'failures', 'pause_ms',
  'jitter', 'in_flight', 'answered', 'told_ms', 'ended', 'chats', 'items' }
local CHATS, ITEMS = 1, 2
local PLACES = { KEYS[2], KEYS[3] }

local name, process, number, said = ARGV[1], ARGV[2], ARGV[3], {}
for index, word in ipairs(SAID) do said[word] = tonumber(ARGV[3 + index]) or ARGV[3 + index] end
local calls_at = 21
local tokens_at = calls_at + 4 * said.ended

local known = redis.call('GET', KEYS[6])
if known then
  local asked, reply = string.match(known, '^(%S+) (.*)$')
  if asked == number then return cjson.decode(reply) end
end

local now, model = now_ms(), read_model(KEYS[1])

-- Takes a limit over. Where it was changed, what calls have taken ahead of it weighs what it weighs now.
local function allow(measure, amount, ...)
  local known = model[measure]
  local weight = amount > 0 and known / amount or 0
  if known > 0 and weight ~= 1 then
    for _, next_call in ipairs({ ... }) do model[next_call] = now + math.max(0, model[next_call] - now) * weight end
  end
  model[measure] = amount
end

model.name, model.concurrency = name, said.concurrency
allow('rpm', said.rpm, 'next_request', 'next_item')
allow('tpm', said.tpm, 'next_token', 'next_item_token')
for _, places in ipairs(PLACES) do redis.call('ZREMRANGEBYSCORE', places, '-inf', int(now)) end
pass_time(model, now)
renew_window(model)
count_untold(model, said.answered, said.told_ms)

-- Gives a place back, and what its call took beyond the estimate; nothing where it was given back before.
local function leave(permit, beyond)
  for lane, places in ipairs(PLACES) do
    if redis.call('ZREM', places, permit) == 1 then
      local ms = said.tpm > 0 and beyond * 60000 / said.tpm or 0
      model.next_token = model.next_token + ms
      if lane == ITEMS then model.next_item_token = model.next_item_token + ms / said.share end
      return true
    end
  end
end

local refused, longest_ms = 0, nil
for at = calls_at, tokens_at - 1, 4 do
  local permit, outcome, retry_after_ms = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 3])
  if permit == '' or leave(permit, tonumber(ARGV[at + 2])) then
    if outcome == 'ok' then count_success(model, permit, said) end
    if outcome == 'failed' or outcome == 'overloaded' then count_failure(model, permit, said) end
    if outcome == 'limited' or outcome == 'overloaded' then
      refused = refused + 1
      if retry_after_ms then longest_ms = math.max(longest_ms or 0, retry_after_ms) end
    end
    if permit == model.probe then model.probe = '' end
  end
end
if refused > 0 then judge_refusals(model, refused, longest_ms, said) end

local wait_ms, reason = closed_for(model, PLACES)
local closed = reason ~= ''
local call_ms, token_ms = intervals(model, said.in_flight)
local width = said.concurrency > 0 and math.max(1, math.floor(said.concurrency * model.factor)) or math.huge
local held = { redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]) }
local wanted, granted = { said.chats, said.items }, { 0, 0 }
if said.chats > 0 then model.chat_seen = now end
if now >= model.item_waits then model.owed = 0 end

-- What a call takes of the pace, in ms, or of the places.
local function cost(tokens)
  local ms = math.max(call_ms, tokens * token_ms)
  return ms > 0 and ms or 1
end

-- Whether an item has waited so long for chats that one is due.
local function item_is_due()
  return now < model.item_waits and model.owed * 1.001 >= model.item_cost
end

-- How long after now, and the burst, a time is.
local function early(one, other)
  return math.max(one, other) - now - said.burst_ms
end

-- How long one more call has to wait, and why; nothing when it may begin.
local function hindered(lane)
  local due = item_is_due()
  if held[CHATS] + held[ITEMS] >= width - (lane == CHATS and due and 1 or 0) then return FULL_MS, 'concurrency' end
  if lane == ITEMS and due then return end
  if lane == ITEMS and now < model.chat_waits then return math.min(model.chat_waits - now, ITEM_MS), 'chats' end
  local ms = early(model.next_request, model.next_token)
  if ms > 0 then return ms, model.next_request >= model.next_token and 'requests' or 'tokens' end
  if lane == CHATS or now - model.chat_seen >= CHATS_MS then return end
  if held[ITEMS] >= math.max(1, math.floor(width * said.share)) then return FULL_MS, 'share' end
  ms = early(model.next_item, model.next_item_token)
  if ms > 0 then return ms, 'share' end
end

-- Lets a call of a lane begin, which takes its place and its part of the pace.
local function begin(lane, tokens)
  granted[lane], held[lane] = granted[lane] + 1, held[lane] + 1
  local permit = process .. '.' .. number .. (lane == CHATS and '.c' or '.b') .. granted[lane]
  redis.call('ZADD', PLACES[lane], int(now + said.permit_ms), permit)
  model.next_request = math.max(model.next_request, now) + call_ms
  model.next_token = math.max(model.next_token, now) + tokens * token_ms
  if lane == ITEMS then
    model.next_item = math.max(model.next_item, now) + call_ms / said.share
    model.next_item_token = math.max(model.next_item_token, now) + tokens * token_ms / said.share
    model.owed = math.max(0, model.owed - cost(tokens))
  elseif now < model.item_waits and said.floor > 0 then
    model.owed = math.min(model.owed + cost(tokens) * said.floor / (1 - said.floor), model.item_cost)
  end
  if model.state == 'half_open' then model.probe, closed, wait_ms, reason = permit, true, PROBE_MS, 'probing' end
end

-- Lets as many calls of a lane begin as may.
local function admit(lane, at)
  for index = at, at + wanted[lane] - 1 do
    local ms, why = hindered(lane)
    if closed then return end
    if why then
      wait_ms = reason == '' and ms or math.min(wait_ms, ms)
      if reason == '' then reason = why end
      return
    end
    begin(lane, tonumber(ARGV[index]))
  end
end

-- Until when it counts that calls of a lane wait: who does asks again before.
local function next_asked()
  return now + math.min(wait_ms, ASKED_MS) + LATE_MS
end

admit(CHATS, tokens_at)
if granted[CHATS] < said.chats then model.chat_waits = next_asked() end
if said.items > 0 then model.item_cost = cost(tonumber(ARGV[tokens_at + said.chats])) end
admit(ITEMS, tokens_at + said.chats)
if granted[ITEMS] < said.items then model.item_waits = next_asked() end

keep_model(KEYS[1], model)
for index = 1, 3 do redis.call('PEXPIRE', KEYS[index], RECORD_MS) end
redis.call('ZADD', KEYS[4], int(now), name)
for index = 4, 5 do redis.call('ZREMRANGEBYSCORE', KEYS[index], '-inf', int(now - RECORD_MS)) end
local well = is_well(model)
local changed = well and redis.call('ZREM', KEYS[5], name) or redis.call('ZADD', KEYS[5], int(now), name)
if changed == 1 then redis.call('PUBLISH', said.channel, name .. (well and ' 1' or ' 0')) end
local reply = { granted[CHATS], granted[ITEMS], math.ceil(wait_ms), reason, well and 1 or 0 }
redis.call('SET', KEYS[6], number .. ' ' .. cjson.encode(reply), 'PX', REPLY_MS)
return reply
