-- Says which batch a free slot is for: of the tenant that has had least, the batch that has had least.
-- With each slot their time goes on by 1 / weight; near its end a batch weighs up to four times as much.
-- KEYS tenants clock newcomers
-- ARGV prefix (of the names of tenants' batches) prefix (of the names of entries), then tenant, weight, …
-- Returns { batch id, tenant }, or {} when no batch takes part.
local weights, now = {}, now_ms()
for index = 3, #ARGV, 2 do weights[ARGV[index]] = tonumber(ARGV[index + 1]) end

-- The member of an index that has had least; who joins from now on begins at its time.
local function least(name, field)
  local found = redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')
  if found[1] then redis.call('HSET', KEYS[2], field, found[2]) end
  return found[1]
end

-- What a batch weighs now.
local function weight_of(entry)
  local weight, expires_at, joined = unpack(redis.call('HMGET', entry, 'weight', 'expires_at', 'joined'))
  weight = tonumber(weight or 1)
  if not expires_at or expires_at == '' then return weight end
  local last_quarter = math.max(1, (tonumber(expires_at) - tonumber(joined)) / 4)
  local left = math.max(0, tonumber(expires_at) - now)
  return left < last_quarter and weight * (4 - 3 * left / last_quarter) or weight
end

local function charge(name, member, weight)
  redis.call('ZINCRBY', name, string.format('%.6f', 1 / weight), member)
end

local tenant = least(KEYS[1], 'tenants')
if not tenant then return {} end
local batch_id = least(ARGV[1] .. tenant, 'of:' .. tenant)
charge(ARGV[1] .. tenant, batch_id, weight_of(ARGV[2] .. batch_id))
charge(KEYS[1], tenant, weights[tenant] or 1)
local expected = tonumber(redis.call('ZSCORE', KEYS[3], batch_id) or 0)
if expected > 1 then
  redis.call('ZINCRBY', KEYS[3], -1, batch_id)
elseif expected > 0 then
  redis.call('ZREM', KEYS[3], batch_id)
end
return { batch_id, tenant }
