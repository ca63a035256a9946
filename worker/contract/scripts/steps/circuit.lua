-- Whether a model answers at all: its circuit is open for a while when it does not, then one call finds out.

local LONGEST_OPEN_MS = 120000
local PROBE_MS = 250 -- how long others wait before they ask what it has found out
local WINDOW_MS = 30000 -- how long failures count that are not in a row

local function open_circuit(model, said)
  model.opens, model.state, model.probe = model.opens + 1, 'open', ''
  local ms = math.min(said.pause_ms * 2 ^ (model.opens - 1), LONGEST_OPEN_MS)
  model.open_until = model.now + ms * (1 + said.jitter)
end

-- Whether this call is the one that finds out.
local function is_probe(model, permit)
  return permit ~= '' and permit == model.probe
end

-- Counts failures that are not in a row from now on, when those of before are old.
local function renew_window(model)
  if model.now - model.since > WINDOW_MS then model.since, model.good, model.bad = model.now, 0, 0 end
end

local function count_success(model, permit, said)
  model.failures, model.good, model.won = 0, model.good + 1, model.won + 1
  if is_probe(model, permit) then
    model.state, model.probe, model.opens, model.good, model.bad = 'closed', '', 0, 0, 0
    if model.base == 0 then model.base = 2 * delivered(model, said.in_flight) end
    model.factor, model.mark = math.min(model.factor, PACE.CUT), 1
    model.cut_at, model.grown_at = model.now, model.now
  end
  count_answer(model)
end

local function count_failure(model, permit, said)
  model.failures, model.bad = model.failures + 1, model.bad + 1
  local often = model.bad >= 2 * said.failures and model.bad >= model.good
  if is_probe(model, permit) or model.state == 'closed' and (model.failures >= said.failures or often) then
    open_circuit(model, said)
  end
end

-- How long nobody is let in, and why: the circuit is open, or the model cools, or a call is under way to find out.
-- lanes: the keys of the places, one of which that call holds until it ends or its worker is gone
local function closed_for(model, lanes)
  if model.state == 'open' and model.now >= model.open_until then model.state, model.probe = 'half_open', '' end
  if model.state == 'open' then return model.open_until - model.now, 'open' end
  if model.now < model.cool_until then return model.cool_until - model.now, 'cooling' end
  for _, places in ipairs(lanes) do
    if model.state == 'half_open' and redis.call('ZSCORE', places, model.probe) then return PROBE_MS, 'probing' end
  end
  return 0, ''
end

local function is_well(model)
  return model.state == 'closed' and model.failures == 0 and model.silent == 0 and model.factor == 1 and ramped(model) == 1
end
