-- Changes a conversation's settings, unless somebody else has changed them since they were read. Finished turns
-- live no longer than their conversation. A repetition finds its own token.
-- KEYS turn log conv msgs fifo ready wakes leases fences ledger totals due dead turns convs usage history   (of no turn: the id is '')
-- ARGV revision settings memory memory_k on_busy ttl_ms token
-- Returns 'ok' | 'missing' | 'changed'.
local key = turn_keys()
local created_at, changed_by, revision, open_turns, lived_ms = unpack(redis.call('HMGET', key.conv, 'created_at',
  'changed', 'revision', 'open', 'ttl_ms'))
if not created_at then return 'missing' end
if changed_by == ARGV[7] then return 'ok' end
if (revision or '0') ~= ARGV[1] then return 'changed' end
redis.call('HSET', key.conv, 'settings', ARGV[2], 'memory', ARGV[3], 'memory_k', ARGV[4], 'on_busy', ARGV[5],
  'ttl_ms', ARGV[6], 'changed', ARGV[7])
redis.call('HINCRBY', key.conv, 'revision', 1)
if lived_ms == ARGV[6] then return 'ok' end

local lives_ms, now = tonumber(ARGV[6]), now_ms()
if lives_ms > 0 then
  for _, turn_id in ipairs(redis.call('ZRANGEBYSCORE', key.turns, int(now + lives_ms), '(inf')) do
    local one = keys_of(key, '', turn_id)
    for _, word in ipairs(OWN) do redis.call('PEXPIRE', one[word], lives_ms) end
    redis.call('ZADD', key.turns, int(now + lives_ms), turn_id)
  end
end
if tonumber(open_turns or 0) == 0 then
  local planned_ms = tonumber(redis.call('HGET', key.conv, 'planned_ms') or 0)
  for _, word in ipairs(LIVING) do
    if lives_ms > 0 then
      redis.call('PEXPIRE', key[word], int(lives_ms + math.max(0, planned_ms - now)))
    else
      redis.call('PERSIST', key[word])
    end
  end
end
return 'ok'
