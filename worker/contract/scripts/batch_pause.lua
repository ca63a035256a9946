-- Pauses a batch, so that no further item begins, or lets it go on. Its time goes on in any case.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id pause (1 or 0) wake_ms
-- Returns the state it is in, or '' when there is no such batch; only one in progress is changed, or one whose lines
-- are read: that goes on.
local key, batch_id = batch_keys(), ARGV[1]
local state = redis.call('HGET', key.batch, 'state')
if state ~= 'in_progress' and state ~= 'validating' then return state or '' end
local gives_out = state == 'in_progress'
if ARGV[2] == '1' then
  redis.call('HSETNX', key.batch, 'paused_at', int(now_ms()))
  if gives_out then unlist_ready(key, batch_id) end
elseif redis.call('HDEL', key.batch, 'paused_at', 'waits_until') > 0 and gives_out then
  list_ready(key, batch_id, now_ms() + tonumber(ARGV[3]))
end
return state
