-- Elects the caller as a shard's reaper for a while and lists what is overdue there.
-- Work that is listed as due is listed again after a moment, until it is claimed or `woken`.
-- KEYS reaper leases ready due crons
-- ARGV owner lock_ms limit due_limit moment_ms
-- Returns { number of works that are ready, expired works, works to wake, turns whose time has come,
--      schedules that are due }
--      or { number of works that are ready } when another is elected.
local ready = redis.call('ZCARD', KEYS[3])
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return { ready } end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])

local now, limit = now_ms(), tonumber(ARGV[3])
local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', int(now), 'LIMIT', 0, tonumber(ARGV[4]))
for _, work in ipairs(due) do redis.call('ZADD', KEYS[3], int(now + tonumber(ARGV[5])), work) end
return { ready, redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(now), 'LIMIT', 0, limit), due,
  redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', int(now), 'LIMIT', 0, limit),
  redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', int(now), 'LIMIT', 0, limit) }
