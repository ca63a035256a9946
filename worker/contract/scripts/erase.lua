-- Erases a conversation with all its turns, whatever state they are in, and the schedules that post to it.
-- Of its ledgers, which hold no text, the totals stay. A turn that runs meets a fence that is gone.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history   (of no turn: the id is '')
--      planned schedule schedules crons   (schedule: the name of a schedule's record but for its id)
-- ARGV conversation_id gone gone_ms control, then ids of turns that its batch items are or would become
--      (gone: the name of a tombstone but for its turn's id)
-- Returns { messages, turns, turns that ran, schedules } or { } when there is no such conversation.
local key = turn_keys()
for index = 5, #ARGV do redis.call('SET', ARGV[2] .. ARGV[index], 1, 'PX', ARGV[3]) end
local schedules = redis.call('ZRANGE', KEYS[18], 0, -1)
if redis.call('EXISTS', key.conv) == 0 and #schedules == 0 then return {} end
local messages, turns, ran = redis.call('LLEN', key.msgs) + left_behind(key), redis.call('ZRANGE', key.turns, 0, -1), 0
for _, turn_id in ipairs(turns) do
  local one = keys_of(key, '', turn_id)
  if redis.call('HGET', one.turn, 'state') == 'running' then
    ran = ran + 1
    redis.call('PUBLISH', ARGV[4], turn_id .. ' erase')
  end
  redis.call('DEL', one.turn, one.log, one.ledger)
  for _, word in ipairs({ 'ready', 'leases', 'due', 'dead' }) do redis.call('ZREM', key[word], turn_id) end
  for _, word in ipairs({ 'wakes', 'fences' }) do redis.call('HDEL', key[word], turn_id) end
  redis.call('SET', ARGV[2] .. turn_id, 1, 'PX', ARGV[3])
end
for _, schedule_id in ipairs(schedules) do
  local one = { schedule = KEYS[19] .. schedule_id, schedules = KEYS[20], crons = KEYS[21] }
  forget_schedule(one, schedule_id, ARGV[2], ARGV[3])
end
redis.call('DEL', key.conv, key.msgs, key.fifo, key.turns, key.history, KEYS[18])
redis.call('ZREM', key.convs, ARGV[1])
return { messages, #turns, ran, #schedules }
