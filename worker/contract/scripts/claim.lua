-- Gives a queued turn to a worker, and everything it needs to run it, in one round trip.
-- Repeating the call with the same token gives the same answer.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id worker token lease_ms channel keep max_version suspect_after call_id call_row
--      max_conversation_version
-- Returns { 'claimed', fence, attempts, suspect, now, created_at, body, conv settings, memory_k, messages,
--        what a pause or an earlier attempt left or '', the answer to its question or '', how it is to stop or '',
--        how many messages stand before those, the summary of them or '',
--        milliseconds that the conversation lives after its last turn, 0 for ever }
--      or { 'gone' } | { 'newer' } | { 'refused', state }
-- A turn that was in `suspect_after` crashes is a suspect: the worker runs it in a process of its own.
local key, turn_id, token = turn_keys(), ARGV[1], ARGV[3]

local record = redis.call('HMGET', key.turn, 'state', 'version', 'claim', 'crashes')
local state, crashes = record[1], tonumber(record[4] or 0)
if not state then return { 'gone' } end
if tonumber(record[2]) > tonumber(ARGV[7]) then return { 'newer' } end
if tonumber(redis.call('HGET', key.conv, 'version') or 0) > tonumber(ARGV[11]) then return { 'newer' } end

local suspect = crashes >= tonumber(ARGV[8])
if not (state == 'running' and record[3] == token) then
  if state ~= 'queued' then return { 'refused', state } end
  if redis.call('HGET', key.conv, 'active') ~= turn_id then return { 'refused', 'waiting' } end

  local now = now_ms()
  local fence = redis.call('HINCRBY', key.turn, 'fence', 1)
  local attempts = redis.call('HINCRBY', key.turn, 'attempts', 1)
  redis.call('HSET', key.turn, 'state', 'running', 'worker', ARGV[2], 'claim', token, 'appended', 0)
  redis.call('ZREM', key.ready, turn_id)
  redis.call('HDEL', key.wakes, turn_id)
  redis.call('ZADD', key.leases, int(now + tonumber(ARGV[4])), turn_id)
  redis.call('HSET', key.fences, turn_id, fence)
  redis.call('HSETNX', key.ledger, ARGV[9], stamped(ARGV[10], int(now), attempts))
  local events = { '{"type":"started","attempt":' .. attempts .. '}' }
  if redis.call('HDEL', key.turn, 'resumed') == 0 and fence > 1 then table.insert(events, 1, '{"type":"reset","attempt":' .. attempts .. '}') end
  emit(key.turn, key.log, ARGV[5], tonumber(ARGV[6]), events)
end

local fields = redis.call('HMGET', key.turn, 'fence', 'attempts', 'created_at', 'body', 'paused', 'answered', 'cancel')
local answer = fields[6] and redis.call('HGET', key.turn, 'answer:' .. fields[6]) or ''
local settings = redis.call('HMGET', key.conv, 'settings', 'memory_k', 'memory', 'summary', 'ttl_ms')
local first, summary = window(key, settings[3], tonumber(settings[2]), settings[4])
return { 'claimed', fields[1], fields[2], suspect and 1 or 0, int(now_ms()), fields[3], fields[4], settings[1], settings[2],
  redis.call('LRANGE', key.msgs, first, -1), fields[5] or '', answer,
  fields[7] or '', first, summary, tonumber(settings[5] or 0) }
