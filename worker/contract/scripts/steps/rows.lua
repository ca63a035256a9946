-- The rows of a batch's items, and the items that wait for the row of an earlier one.

-- Lists a row that was stored just now, behind its index `:<how often the item was retried>`: a row that was taken out
-- again to be made anew stands in the list with a number that is no longer the item's.
local function list_row(key, index)
  local tried = redis.call('HGET', key.slices, 'try:' .. index)
  redis.call('RPUSH', key.order, tried and index .. ':' .. tried or index)
end

-- Counts a row that was stored just now.
local function count_row(key, index, ok)
  redis.call('HINCRBY', key.batch, ok and 'completed' or 'failed', 1)
  list_row(key, index)
  if not ok then redis.call('RPUSH', key.bad, index) end
end

-- Lets an item wait for the row of an earlier one: `parked` holds under the earlier index how many wait, and under
-- `<earlier index>:<number>` who does and as what: its entry where it repeats that one, `>` where it goes on from it.
local function park(key, earlier, index, as)
  local number = redis.call('HINCRBY', key.parked, earlier, 1)
  redis.call('HSET', key.parked, earlier .. ':' .. number, index .. as)
end

-- Gives an item that repeats an earlier one its row, which is its entry, behind a `!` where the earlier one has
-- failed; or lets it wait for the earlier one's.
local function repeat_row(key, earlier, index, item)
  local row = redis.call('HGET', key.rows, earlier)
  if not row then return park(key, earlier, index, item) end
  local ok = string.match(row, '"status":"(%w+)"') == 'ok'
  if redis.call('HSETNX', key.rows, index, ok and item or '!' .. item) == 0 then return end
  count_row(key, index, ok)
  if ok then redis.call('HINCRBY', key.batch, 'saved', 1) end
end

-- Gives their rows to those that wait for an item whose row is there now; who goes on a conversation with it is run.
local function unpark(key, earlier)
  local count = tonumber(redis.call('HGET', key.parked, earlier) or 0)
  if count == 0 then return end
  redis.call('HDEL', key.parked, earlier)
  for number = 1, count do
    local name = earlier .. ':' .. number
    local index, item = string.match(redis.call('HGET', key.parked, name), '^(%d+)([=>].*)$')
    redis.call('HDEL', key.parked, name)
    if item == '>' then
      redis.call('RPUSH', key.redo, index .. ':1:0')
    else
      repeat_row(key, earlier, index, item)
    end
  end
end

-- Forgets the call that the claim of a slice has entered for an item, and that was not made.
local function forget_call(key, batch_id, start, index)
  local token = string.match(redis.call('HGET', key.slices, start), '%w+$')
  local call_id = batch_id .. '.' .. token .. '.' .. index .. '.1'
  local row = redis.call('HGET', key.ledger, call_id)
  if row then unmake(key, call_id, row) end
end

-- The row of an item whose conversation was erased; of the item only the caller's own id is left.
local function erased_row(index, item)
  local read, told = pcall(cjson.decode, item)
  local own = read and type(told) == 'table' and type(told.id) == 'string' and cjson.encode(told.id) or 'null'
  return '{"index":' .. int(index) .. ',"id":' .. own .. ',"status":"error","error":{"code":"conversation_erased",'
    .. '"message":"the conversation was erased","retryable":false},"attempts":0}'
end
