-- A turn: its keys, its log, how long it lives, how it ends.

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

-- The keys that are a turn's own.
local OWN = { 'turn', 'log', 'ledger' }

-- The keys of another turn of the same conversation.
local function keys_of(key, turn_id, other)
  local keys = {}
  for word, name in pairs(key) do keys[word] = name end
  for _, word in ipairs(OWN) do keys[word] = renamed(key[word], turn_id, other) end
  return keys
end

-- Appends events to a turn's log and publishes them with the first one's sequence number.
-- trimmed: how many the log holds no more, where the caller knows
local function emit(turn, log, channel, keep, events, trimmed)
  if #events == 0 then return end
  trimmed = trimmed or redis.call('HGET', turn, 'trimmed') or 0
  local length = push(log, events)
  local first = trimmed + length - #events + 1
  if length > keep then
    redis.call('LTRIM', log, length - keep, -1)
    redis.call('HINCRBY', turn, 'trimmed', length - keep)
  end
  redis.call('PUBLISH', channel, int(first) .. '\n' .. table.concat(events, '\n'))
end

-- Makes a turn the conversation's active one, for a worker to be woken for.
local function make_ready(key, turn_id, now, wake_ms)
  redis.call('HSET', key.conv, 'active', turn_id)
  list_ready(key, turn_id, now + wake_ms)
end

-- Lets a turn live for as long as its conversation does, and the conversation from its last turn's end on, or
-- from when a schedule posts to it next.
local function age(key, turn_id, now, ttl_ms)
  local lives_ms, planned_ms = unpack(redis.call('HMGET', key.conv, 'ttl_ms', 'planned_ms'))
  lives_ms = tonumber(lives_ms or 0)
  local keep_ms = int(lives_ms > 0 and math.min(lives_ms, tonumber(ttl_ms)) or ttl_ms)
  for _, word in ipairs(OWN) do redis.call('PEXPIRE', key[word], keep_ms) end
  redis.call('ZADD', key.turns, int(now + keep_ms), turn_id)
  if redis.call('HINCRBY', key.conv, 'open', -1) > 0 or lives_ms <= 0 then return end
  local stay_ms = int(lives_ms + math.max(0, tonumber(planned_ms or 0) - now))
  for _, word in ipairs(LIVING) do redis.call('PEXPIRE', key[word], stay_ms) end
end

-- Hands out the conversation's next turn, which is active from now on; returns its id, or ''.
local function hand_on(key, now, wake_ms)
  local following = redis.call('LPOP', key.fifo)
  if following then
    make_ready(key, following, now, wake_ms)
  else
    redis.call('HDEL', key.conv, 'active')
  end
  return following or ''
end

-- Ends a turn in a terminal state and hands out the conversation's next one.
-- Returns the id of that turn, or ''.
local function conclude(key, turn_id, state, result, events, channel, keep, ttl_ms, wake_ms)
  local now = now_ms()
  redis.call('HSET', key.turn, 'state', state, 'result', result, 'finished_at', int(now))
  redis.call('HDEL', key.turn, 'cancel', 'worker', 'question', 'paused', 'left')
  emit(key.turn, key.log, channel, keep, events)
  close_calls(key)
  end_lease(key, turn_id)
  unlist_ready(key, turn_id)
  redis.call('ZREM', key.due, turn_id)
  age(key, turn_id, now, ttl_ms)
  if redis.call('HGET', key.conv, 'active') ~= turn_id then
    redis.call('LREM', key.fifo, 1, turn_id)
    return ''
  end
  return hand_on(key, now, wake_ms)
end
