-- Makes a schedule, and the conversation that it posts to where there is none. A repetition finds its own body.
-- KEYS schedule schedules crons gone, and where it posts to a conversation: planned conv msgs turns convs history
-- ARGV schedule_id digest paused next_ms next_turn most conversation_id conversation_version memory_k lives_ms
--      field, value, …   (next_ms and next_turn: '' for never)
-- Returns { 'made', created_at } | { 'replayed' | 'mismatch' | 'gone' | 'full' }.
local key, schedule_id = schedule_keys(), ARGV[1]
local digest = redis.call('HGET', key.schedule, 'digest')
if digest then return { digest == ARGV[2] and 'replayed' or 'mismatch' } end
if redis.call('EXISTS', key.gone) == 1 then return { 'gone' } end
if key.planned and redis.call('ZCARD', key.planned) >= tonumber(ARGV[6]) then return { 'full' } end

local now = now_ms()
redis.call('HSET', key.schedule, 'digest', ARGV[2], 'paused', ARGV[3], 'revision', 1, 'created_at', int(now),
  'conversation_id', ARGV[7], unpack(ARGV, 11))
redis.call('ZADD', key.schedules, int(now), schedule_id)
if key.planned then
  redis.call('ZADD', key.planned, int(now), schedule_id)
  if redis.call('EXISTS', key.conv) == 0 then
    begin_conversation(key, ARGV[8], ARGV[9], ARGV[10])
    list_new(key, ARGV[7])
    if ARGV[10] ~= '0' then redis.call('PEXPIRE', key.conv, ARGV[10]) end
  end
end
plan(key, schedule_id, ARGV[4], ARGV[5])
return { 'made', int(now) }
