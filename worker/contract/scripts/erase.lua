-- Erases a conversation with all its turns, whatever state they are in. Of its ledgers, which hold no text,
-- the totals stay. A turn that runs meets a fence that is gone.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage   (of no turn: the id is '')
-- ARGV conversation_id gone gone_ms control   (gone: the name of a tombstone but for its turn's id)
-- Returns { messages, turns, turns that ran } or { } when there is no such conversation.
local key = turn_keys()
if redis.call('EXISTS', key.conv) == 0 then return {} end
local messages, turns, ran = redis.call('LLEN', key.msgs), redis.call('ZRANGE', key.turns, 0, -1), 0
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
redis.call('DEL', key.conv, key.msgs, key.fifo, key.turns)
redis.call('ZREM', key.convs, ARGV[1])
return { messages, #turns, ran }
