-- Erases the items of a conversation in a batch: of each nothing is left but a row that says so, and it is run no more.
-- In a batch whose lines are still stored, those that follow meet the note in `talks`. Repeating the call erases nothing
-- twice.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id conversation_id from ('' for its last item, else where the answer before said to go on) ttl_ms wake_ms
-- Returns { items erased, where to go on or '', { index, how often it was retried, … } } with each item of the
--      conversation that this call came by, also those that were erased before.
local key, batch_id, conversation = batch_keys(), ARGV[1], ARGV[2]
local LOOKED_AT = 1000
local state, step = unpack(redis.call('HMGET', key.batch, 'state', 'step'))
if not state then return { 0, '', {} } end
local last = redis.call('HGET', key.talks, conversation) or ''
if step == 'validate' and not string.find(last, 'erased', 1, true) then
  redis.call('HSET', key.talks, conversation, 'erased' .. last)
end

local index = ARGV[3] ~= '' and ARGV[3] or string.match(last, '%d*$')
local erased, found = 0, {}
while index ~= '' and #found < 2 * LOOKED_AT do
  local entry = redis.call('LINDEX', key.items, index)
  local kind, earlier, item = string.match(entry or '', '^([>!])(%d*) ?(.*)$')
  if kind == '>' then
    local before = redis.call('HGET', key.rows, index)
    redis.call('LSET', key.items, index, '!' .. earlier)
    redis.call('HSET', key.rows, index, erased_row(index, item))
    for _, list in ipairs({ 'bad', 'again' }) do redis.call('LREM', key[list], 0, index) end
    if not before then
      list_row(key, index)
      if step ~= 'validate' then redis.call('HINCRBY', key.batch, 'failed', 1) end
    elseif string.match(before, '"status":"(%w+)"') == 'ok' then
      redis.call('HINCRBY', key.batch, 'completed', -1)
      redis.call('HINCRBY', key.batch, 'failed', 1)
    end
    erased = erased + 1
  end
  found[#found + 1], found[#found + 2] = index, redis.call('HGET', key.slices, 'try:' .. index) or '0'
  index = earlier or ''
end
if erased > 0 then
  local left = redis.call('PTTL', key.batch)
  if left >= 0 then
    for _, name in ipairs({ 'rows', 'order' }) do redis.call('PEXPIRE', key[name], left) end
  end
  go_on(key, batch_id, ARGV[4], ARGV[5])
end
return { erased, index, found }
