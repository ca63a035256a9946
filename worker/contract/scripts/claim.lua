-- Gives a queued turn to a worker, and everything it needs to run it, in one round trip.
-- Repeating the call with the same token gives the same answer.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history
-- ARGV turn_id worker token lease_ms channel keep max_version suspect_after call_id call_row
--      max_conversation_version
-- Returns { 'claimed', fence, attempts, suspect, now, created_at, body, conv settings, memory_k, messages,
--        what a pause or an earlier attempt left or '', the answer to its question or '', how it is to stop or '',
--        how many messages stand before those, the summary of them or '',
--        milliseconds that the conversation lives after its last turn, 0 for ever, the batch whose item it is or '',
--        the name of the API key that it was posted with or '' }
--      or { 'gone' } | { 'newer' } | { 'refused', state }
-- A turn that was in `suspect_after` crashes is a suspect: the worker runs it in a process of its own.
local key, turn_id, token = turn_keys(), ARGV[1], ARGV[3]

local state, version, claim, crashes = unpack(redis.call('HMGET', key.turn, 'state', 'version', 'claim', 'crashes'))
if not state then return { 'gone' } end
if tonumber(version) > tonumber(ARGV[7]) then return { 'newer' } end
local active, conv_version, settings, memory_k, memory, summarized, lives_ms = unpack(redis.call('HMGET', key.conv, 'active',
  'version', 'settings', 'memory_k', 'memory', 'summary', 'ttl_ms'))
if tonumber(conv_version or 0) > tonumber(ARGV[11]) then return { 'newer' } end

local suspect = tonumber(crashes or 0) >= tonumber(ARGV[8])
if not (state == 'running' and claim == token) then
  if state ~= 'queued' then return { 'refused', state } end
  if active ~= turn_id then return { 'refused', 'waiting' } end

  local now = now_ms()
  local fence = redis.call('HINCRBY', key.turn, 'fence', 1)
  local attempts = redis.call('HINCRBY', key.turn, 'attempts', 1)
  redis.call('HSET', key.turn, 'state', 'running', 'worker', ARGV[2], 'claim', token, 'appended', 0)
  unlist_ready(key, turn_id)
  hold_lease(key, turn_id, fence, now + tonumber(ARGV[4]))
  redis.call('HSETNX', key.ledger, ARGV[9], stamped(ARGV[10], int(now), attempts))
  local events = { '{"type":"started","attempt":' .. attempts .. '}' }
  if redis.call('HDEL', key.turn, 'resumed') == 0 and fence > 1 then
    table.insert(events, 1, '{"type":"reset","attempt":' .. attempts .. '}')
  end
  emit(key.turn, key.log, ARGV[5], tonumber(ARGV[6]), events)
end

local fence, attempts, created_at, body, paused, answered, cancel, batch, api_key = unpack(redis.call('HMGET', key.turn, 'fence',
  'attempts', 'created_at', 'body', 'paused', 'answered', 'cancel', 'batch', 'api_key'))
local answer = answered and redis.call('HGET', key.turn, 'answer:' .. answered) or ''
local first, summary = memory_window(key, memory, tonumber(memory_k), summarized)
local messages, before = window_of(key, first)
return { 'claimed', fence, attempts, suspect and 1 or 0, int(now_ms()), created_at, body, settings, memory_k,
  messages, paused or '', answer, cancel or '', before, summary, tonumber(lives_ms or 0),
  batch or '', api_key or '' }
