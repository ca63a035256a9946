-- Erases a conversation with all its turns, whatever state they are in, and the schedules that post to it.
-- Of its ledgers, which hold no text, the totals stay. A turn that runs meets a fence that is gone.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history   (of no turn: the id is '')
--      planned schedule schedules crons   (schedule: the name of a schedule's record but for its id)
-- ARGV conversation_id gone gone_ms control token, then ids of turns that its batch items are or would become
--      (gone: the name of a tombstone but for its turn's id)
-- Returns { messages, turns, turns that ran, schedules } or { } when there is no such conversation. A repetition finds
-- under its token what it has erased.
local key, receipt = turn_keys(), ARGV[2] .. ARGV[5]
local said = redis.call('GET', receipt)
if said then return cjson.decode(said) end
for index = 6, #ARGV do redis.call('SET', ARGV[2] .. ARGV[index], 1, 'PX', ARGV[3]) end
local schedules = redis.call('ZRANGE', KEYS[18], 0, -1)
local active = redis.call('HGET', key.conv, 'active')
if redis.call('EXISTS', key.conv) == 0 and #schedules == 0 then return {} end

local messages, turns, ran = redis.call('LLEN', key.msgs) + left_behind(key), redis.call('ZRANGE', key.turns, 0, -1), 0
if active and redis.call('HGET', keys_of(key, '', active).turn, 'state') == 'running' then
  ran = 1
  redis.call('PUBLISH', ARGV[4], active .. ' erase')
end
-- Many at a time: nobody is served meanwhile.
for start = 1, #turns, 500 do
  local some, own = { unpack(turns, start, math.min(start + 499, #turns)) }, {}
  for _, turn_id in ipairs(some) do
    for _, word in ipairs(OWN) do own[#own + 1] = key[word] .. turn_id end
    redis.call('SET', ARGV[2] .. turn_id, 1, 'PX', ARGV[3])
  end
  redis.call('DEL', unpack(own))
  for _, word in ipairs({ 'ready', 'leases', 'due', 'dead' }) do redis.call('ZREM', key[word], unpack(some)) end
  for _, word in ipairs({ 'wakes', 'fences' }) do redis.call('HDEL', key[word], unpack(some)) end
end
for _, schedule_id in ipairs(schedules) do
  local one = { schedule = KEYS[19] .. schedule_id, schedules = KEYS[20], crons = KEYS[21] }
  forget_schedule(one, schedule_id, ARGV[2], ARGV[3])
end
redis.call('DEL', key.conv, key.msgs, key.fifo, key.turns, key.history, KEYS[18])
redis.call('ZREM', key.convs, ARGV[1])
local erased = { messages, #turns, ran, #schedules }
redis.call('SET', receipt, cjson.encode(erased), 'PX', ARGV[3])
return erased
