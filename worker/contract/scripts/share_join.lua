-- Lets a batch take part in the sharing of slots. Joining twice changes nothing but its weight and end.
-- Who is new begins a little ahead of the others, and slots make way for it: a short batch ends soon beside a long one;
-- who was in before goes on from where it left, or from where the others are by now.
-- KEYS tenants clock batches (of this tenant) entry newcomers
-- ARGV batch_id tenant weight expires_at ('' for none) head_start keep_ms new_ms (for how long slots make way at most)
-- Returns 1 when it has joined now, else 0.
local batch_id, tenant = ARGV[1], ARGV[2]
local joined, left_at = unpack(redis.call('HMGET', KEYS[4], 'joined', 'left_at'))
redis.call('HSET', KEYS[4], 'tenant', tenant, 'weight', ARGV[3], 'expires_at', ARGV[4], 'joined', joined or int(now_ms()))
redis.call('HDEL', KEYS[4], 'left_at')
redis.call('PEXPIRE', KEYS[4], ARGV[6])
if redis.call('ZSCORE', KEYS[3], batch_id) then return 0 end

local clock = redis.call('HMGET', KEYS[2], 'tenants', 'of:' .. tenant)
local reached = tonumber(clock[2] or 0)
local begins = left_at and math.max(reached, tonumber(left_at)) or reached - tonumber(ARGV[5])
redis.call('ZADD', KEYS[3], string.format('%.6f', begins), batch_id)
redis.call('ZADD', KEYS[1], 'NX', clock[1] or 0, tenant)
if not left_at then
  redis.call('ZADD', KEYS[5], ARGV[5], batch_id)
  redis.call('PEXPIRE', KEYS[5], ARGV[7])
end
return 1
