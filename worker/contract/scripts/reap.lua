-- Elects the caller as a shard's reaper for a while and lists what is overdue there.
-- Work that is listed as due is due again later, each time after twice as long.
-- KEYS reaper leases ready wakes due crons
-- ARGV owner lock_ms limit first_ms longest_ms
-- Returns { expired works, works to wake, number of works that are ready, turns whose time has come,
--      schedules that are due }
--      or { } when another is elected.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])

local now, limit = now_ms(), tonumber(ARGV[3])
local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(now), 'LIMIT', 0, limit)
local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', int(now), 'LIMIT', 0, limit)
for _, work in ipairs(due) do
  local count = redis.call('HINCRBY', KEYS[4], work, 1)
  local pause = math.min(tonumber(ARGV[4]) * 2 ^ math.min(count, 16), tonumber(ARGV[5]))
  redis.call('ZADD', KEYS[3], int(now + pause), work)
end
return { expired, due, redis.call('ZCARD', KEYS[3]),
  redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', int(now), 'LIMIT', 0, limit),
  redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', int(now), 'LIMIT', 0, limit) }
