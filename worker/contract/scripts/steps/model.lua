-- The record of a model. Times and durations are in milliseconds, a field that is not there counts as 0:
--
--   name rpm tpm concurrency   who it is and what it allows, 0 for no limit
--   now                        when the last step was
--   state probe                the circuit: closed, open or half_open; the permit of the call that finds out, or ''
--   open_until opens           until when the circuit is open, and how often in a row it was opened
--   failures                   failed calls in a row
--   since good bad             calls that were answered and that failed since then
--   cool_until cools           until when nobody calls, and how many pauses in a row had no Retry-After
--   ramp_ms                    over how long the pace comes back behind the pause
--   won lost paused            answers, refusals, and time that pauses took; older ones count less and less
--   counted_at judged_until    since when these are counted; refusals until then belong to those that were judged
--   factor base                the pace: a share of what is allowed, or, where nobody says, of so many calls a second
--   mark cut_at grown_at       a share that was good; when the pace was cut, and when it grew last
--   hold_ms trims              how long it stays at the mark, and how many small cuts there were in that time
--   silent                     1 while nothing at all is answered
--   next_request next_token    when the next call may begin by requests and by tokens
--   next_item next_item_token  the same for items beside chats
--   chat_seen chat_waits       when a chat was asked for last, and until when one waits
--   item_waits item_cost owed  until when an item waits, what it takes, and how much of that chats have left to items

local function read_model(name)
  local stored, model = redis.call('HGETALL', name), { factor = 1, state = 'closed', probe = '' }
  for index = 1, #stored, 2 do model[stored[index]] = tonumber(stored[index + 1]) or stored[index + 1] end
  return setmetatable(model, { __index = function() return 0 end })
end

local function keep_model(name, model)
  local values = {}
  for field, value in pairs(model) do
    values[#values + 1] = field
    values[#values + 1] = type(value) == 'number' and string.format('%.6f', value) or value
  end
  redis.call('HSET', name, unpack(values))
end
