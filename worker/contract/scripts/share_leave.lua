-- Takes a batch out of the sharing of slots: for now, or for good.
-- KEYS tenants clock batches (of this tenant) entry newcomers
-- ARGV batch_id tenant for_good
-- Returns 1, or 0 when it took no part.
local reached = redis.call('ZSCORE', KEYS[3], ARGV[1])
if ARGV[3] == '1' then
  redis.call('DEL', KEYS[4])
elseif reached then
  redis.call('HSET', KEYS[4], 'left_at', reached)
end
local left = redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[5], ARGV[1])
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('ZREM', KEYS[1], ARGV[2])
  redis.call('HDEL', KEYS[2], 'of:' .. ARGV[2])
end
return left
