-- The indexes of a shard: what is ready, and who holds what by a lease. Work is a turn, a batch, or a slice of one.

-- Lists work as ready, for a worker to be woken for again at this time unless somebody has it by then.
local function list_ready(key, work, at)
  redis.call('ZADD', key.ready, int(at), work)
end

local function unlist_ready(key, work)
  redis.call('ZREM', key.ready, work)
  redis.call('HDEL', key.wakes, work)
end

local function hold_lease(key, work, fence, until_ms)
  redis.call('ZADD', key.leases, int(until_ms), work)
  redis.call('HSET', key.fences, work, fence)
end

local function end_lease(key, work)
  redis.call('ZREM', key.leases, work)
  redis.call('HDEL', key.fences, work)
end
