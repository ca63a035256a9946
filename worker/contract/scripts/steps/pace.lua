-- How fast a model is called.
--
-- Refusals are a limit, and no noise, when in recent calls there are more than a few and a tenth of all. A limit's
-- Retry-After holds for everyone, and the pace is cut to what was answered, once for all the calls that were under
-- way. It comes back quickly to where it is known to be good, stays there (each time longer), then grows ever faster.
-- Of noise the same is believed until it has taken a twentieth of the time; beyond that it holds for its own call
-- only, and it slows down nobody.

local PACE = {
  MEMORY_MS = 5000, -- an answer counts for 1/e after so long: a limit is judged by the last seconds
  NOISE = 3, NOISE_SHARE = 0.1, -- so many refusals, and such a share of all calls, say nothing of a limit
  NOISE_MS = 250, -- how long they may stop everyone within MEMORY_MS
  COOL_MS = 500, LONGEST_MS = 120000, -- a pause without a Retry-After, the first in a row and the longest
  WAVE_MS = 250, -- refusals that come within so long are of calls that were under way together
  RAMP = 0.4, RAMP_MS = 1000, -- after a pause the pace begins at this share of itself and is whole after so long at most
  LEAST = 0.002, -- the slowest pace
  CUT = 0.5, -- no cut is deeper, whatever was answered
  STEEP = 0.75, -- nor less deep where the pace had not come back yet to what was good
  HEADROOM = 0.95, -- below what was answered, so that the next seconds have no refusals
  UNSURE = 32, -- times what is answered now: where growing begins as long as too little is known
  TRIM = 0.96, TRIMS = 3, -- a small cut where growing has met the limit; more of them in a row have not helped
  TRIM_MS = 1000, -- between two of them: what was under way is not counted again
  HOLD_MS = 4000, LONGEST_HOLD_MS = 32000, -- how long the pace stays where it is good
  BACK = 4, -- times a second, up to what was good
  GROWTH = 0.02, DOUBLE_S = 2, -- a second, beyond it, at first; and after how many seconds twice as fast
}

-- Forgets a little of what was answered and refused: it is now so late.
local function pass_time(model, now)
  local kept = math.exp(-math.max(0, now - model.now) / PACE.MEMORY_MS)
  model.won, model.lost, model.paused, model.now = model.won * kept, model.lost * kept, model.paused * kept, now
  if model.counted_at == 0 then model.counted_at = now end
end

-- Answers a second, where so many are counted over so long.
local function a_second(answers, ms)
  return answers * 1000 / (PACE.MEMORY_MS * (1 - math.exp(-math.max(1000, ms) / PACE.MEMORY_MS)))
end

-- Answers a second, as far as is known; before anything is, what the process has under way.
local function delivered(model, in_flight)
  if model.won < 1 then return math.max(1, in_flight) end
  return math.max(1, a_second(model.won, model.now - model.counted_at))
end

-- Counts what a process had answered unasked; who tells of it behind a cut makes up for what the cut did not know.
local function count_untold(model, answers, ms)
  if answers > 0 and model.cut_at > 0 and model.now - model.cut_at < PACE.MEMORY_MS then
    if model.rpm == 0 then model.base = model.base + 2 * a_second(answers, ms) end
  else
    model.won, model.counted_at = model.won + answers, math.min(model.counted_at, model.now - ms)
  end
end

-- Lets nobody call for so long, and the jitter.
local function cool_down(model, ms, jitter)
  local from, to = math.max(model.now, model.cool_until), model.now + ms * (1 + jitter)
  if to <= from then return end
  model.cool_until, model.ramp_ms, model.paused = to, math.min(ms, PACE.RAMP_MS), model.paused + to - from
end

-- Where nothing tells how many answers there can be, the pace begins low, and what is good is found by growing. When
-- nothing at all is answered, the pauses do it: of the right pace that says nothing.
local function cut_pace(model, in_flight)
  local now, whole, answered = model.now, model.factor, model.won / (model.won + model.lost)
  if model.silent == 0 then
    model.silent = model.won < 1 and 1 or 0
    if model.rpm > 0 or whole < 1 then
      if whole < model.mark then answered = math.min(answered, PACE.STEEP) end
      model.factor = math.max(PACE.LEAST, whole * math.max(PACE.CUT, answered) * PACE.HEADROOM)
      model.mark = model.silent == 1 and whole or model.factor
    elseif model.silent == 0 and now - model.counted_at >= PACE.MEMORY_MS then
      model.base, model.factor = delivered(model, in_flight) / PACE.CUT, PACE.CUT * PACE.HEADROOM
      model.mark = model.factor
    else
      model.base, model.factor, model.mark = delivered(model, in_flight) * PACE.UNSURE, 1 / PACE.UNSURE, 1
    end
    model.hold_ms = math.max(PACE.HOLD_MS, model.hold_ms)
  end
  model.won, model.lost, model.counted_at, model.cut_at, model.grown_at, model.trims = 0, 0, now, now, now, 0
end

-- The pace has grown beyond what is allowed; refusals that slowing down does not end have nothing to do with it.
local function trim_pace(model)
  local ms = model.now - model.cut_at
  if ms < PACE.TRIM_MS then return end
  if ms > model.hold_ms then model.trims, model.hold_ms = 0, math.min(2 * model.hold_ms, PACE.LONGEST_HOLD_MS) end
  if model.trims == PACE.TRIMS then return end
  model.factor, model.trims = math.max(PACE.LEAST, model.factor * PACE.TRIM), model.trims + 1
  model.mark, model.cut_at, model.grown_at = model.factor, model.now, model.now
end

-- Counts refusals, and slows down or stops everyone. Without a Retry-After, which may be nil, everyone waits when more
-- is refused than answered, each time twice as long.
local function judge_refusals(model, refused, retry_after_ms, said)
  model.lost = model.lost + refused
  local limit = model.silent == 1 or model.lost > PACE.NOISE + PACE.NOISE_SHARE * (model.won + model.lost)
  local mostly, anew = limit or model.lost > model.won, model.now >= model.judged_until
  if anew and limit then
    cut_pace(model, said.in_flight)
  elseif model.factor < 1 and model.factor >= model.mark then
    trim_pace(model)
  end
  if retry_after_ms then
    local believed = mostly or model.paused <= PACE.NOISE_MS or model.now < model.cool_until
    if believed then cool_down(model, retry_after_ms, said.jitter) end
  elseif anew and mostly then
    model.cools = model.cools + 1
    cool_down(model, math.min(PACE.COOL_MS * 2 ^ (model.cools - 1), PACE.LONGEST_MS), said.jitter)
  end
  if anew and mostly then model.judged_until = math.max(model.now + PACE.WAVE_MS, model.cool_until) end
end

local function grow_pace(model)
  local seconds = math.min(model.now - model.grown_at, 1000) / 1000
  model.grown_at = model.now
  if model.factor < model.mark then
    model.factor = math.min(model.mark, model.factor * PACE.BACK ^ seconds)
  else
    local late = (model.now - model.cut_at - model.hold_ms) / 1000
    local growth = late > 0 and math.min(1, PACE.GROWTH * 2 ^ (late / PACE.DOUBLE_S)) or 0
    model.factor = model.factor * (1 + growth) ^ seconds
    model.mark = model.factor
  end
  if model.factor >= 1 then model.factor, model.mark, model.hold_ms, model.trims = 1, 0, 0, 0 end
end

-- Counts an answer to the pace.
local function count_answer(model)
  if model.now < model.cool_until then return end
  if model.silent == 1 then model.next_request = math.min(model.next_request, model.now) end
  model.cools, model.silent = 0, 0
  if model.factor < 1 then grow_pace(model) end
end

-- After a pause the pace comes back over as long again: the share of it that holds by now.
local function ramped(model)
  local ms = math.max(0, model.now - model.cool_until)
  return ms < model.ramp_ms and PACE.RAMP + (1 - PACE.RAMP) * ms / model.ramp_ms or 1
end

-- How long after a call the next one begins, slower still while nothing is answered; and how long a token takes.
local function intervals(model, in_flight)
  local share, base = ramped(model), model.base
  local pace, call_ms = model.factor * share, 0
  if model.factor == 1 and share < 1 then base = 2 * delivered(model, in_flight) end
  if model.rpm > 0 then
    call_ms = 60000 / (model.rpm * pace)
  elseif pace < 1 then
    call_ms = 1000 / (base * pace)
  end
  if model.silent == 1 then call_ms = math.max(call_ms, 1000) end
  return call_ms, model.tpm > 0 and 60000 / (model.tpm * pace) or 0
end
