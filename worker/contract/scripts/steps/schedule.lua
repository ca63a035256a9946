-- A schedule, and how long it keeps the conversation that it posts to.

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
