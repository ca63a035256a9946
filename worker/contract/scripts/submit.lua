-- Stores a turn: for later, ready at once when its conversation is idle, or by what `on_busy` says.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id tenant conversation_id version digest body lane channel keep wake_ms create
--      conversation_version memory_k event on_busy due_ms lives_ms gone control cancelled_result
--      cancelled_event ttl_ms remembered_ms batch api_key
--      (on_busy and due_ms may be '': the conversation's own, and now; gone: the name of the turn's tombstone;
--      remembered_ms: how long a repetition must not run again, 0 for a turn without a key;
--      batch: whose item the turn is, or ''; api_key: the name of the key that it was posted with, or '')
-- Returns { 'ready' | 'waiting' | 'scheduled', created_at } | { 'replayed' | 'mismatch' | 'missing' | 'gone' }
--      | { 'busy', active turn id }.
local key, turn_id = turn_keys(), ARGV[1]

local digest = redis.call('HGET', key.turn, 'digest')
if digest then return { digest == ARGV[5] and 'replayed' or 'mismatch' } end
if redis.call('EXISTS', ARGV[18]) == 1 then return { 'gone' } end

local now, wake_ms, later = now_ms(), tonumber(ARGV[10]), ARGV[16] ~= ''
local active = redis.call('HGET', key.conv, 'active')
local on_busy = ARGV[15] ~= '' and ARGV[15] or redis.call('HGET', key.conv, 'on_busy') or 'enqueue'
if active and not later and on_busy == 'reject' then return { 'busy', active } end

if redis.call('EXISTS', key.conv) == 0 then
  if ARGV[11] == 'reject' then return { 'missing' } end
  begin_conversation(key, ARGV[12], ARGV[13], ARGV[17])
  list_new(key, ARGV[3])
else
  redis.call('ZADD', key.convs, int(now), ARGV[3])
end
redis.call('HINCRBY', key.conv, 'open', 1)
for _, word in ipairs(LIVING) do redis.call('PERSIST', key[word]) end
redis.call('ZREMRANGEBYSCORE', key.turns, '-inf', int(now))
redis.call('ZADD', key.turns, '+inf', turn_id)
redis.call('HSET', key.turn, 'version', ARGV[4], 'tenant', ARGV[2], 'conversation_id', ARGV[3], 'digest', ARGV[5],
  'state', later and 'scheduled' or 'queued', 'body', ARGV[6], 'lane', ARGV[7], 'created_at', int(now), 'fence', 0,
  'attempts', 0)
if ARGV[24] ~= '' then redis.call('HSET', key.turn, 'batch', ARGV[24]) end
if ARGV[25] ~= '' then redis.call('HSET', key.turn, 'api_key', ARGV[25]) end
emit(key.turn, key.log, ARGV[8], tonumber(ARGV[9]), { ARGV[14] })

-- However soon the turn is forgotten: how long its conversation lives can be changed later.
if ARGV[23] ~= '0' then redis.call('SET', ARGV[18], 1, 'PX', ARGV[23]) end

if later then
  redis.call('ZADD', key.due, ARGV[16], turn_id)
  return { 'scheduled', int(now) }
end
if not active then
  make_ready(key, turn_id, now, wake_ms)
  return { 'ready', int(now) }
end
if on_busy == 'enqueue' then
  redis.call('RPUSH', key.fifo, turn_id)
  return { 'waiting', int(now) }
end

-- The running turn is stopped, and this one goes next.
redis.call('LPUSH', key.fifo, turn_id)
local other = keys_of(key, turn_id, active)
if redis.call('HGET', other.turn, 'state') == 'running' then
  -- Who wants it forgotten is not overruled by who would keep its partial answer.
  if redis.call('HGET', other.turn, 'cancel') ~= 'rollback' then redis.call('HSET', other.turn, 'cancel', on_busy) end
  redis.call('PUBLISH', ARGV[19], active .. ' ' .. on_busy)
  return { 'waiting', int(now) }
end
if on_busy == 'interrupt' then learn_left(other, active) end
conclude(other, active, 'cancelled', ARGV[20], { ARGV[21] }, renamed(ARGV[8], turn_id, active), tonumber(ARGV[9]),
  ARGV[22], wake_ms)
return { 'ready', int(now) }
