-- Reads a turn's log behind a sequence number. Writes nothing.
-- KEYS turn log
-- ARGV tenant after limit
-- Returns { trimmed, length of the log, state, events } or { } when the tenant has no such turn.
local tenant, state, trimmed = unpack(redis.call('HMGET', KEYS[1], 'tenant', 'state', 'trimmed'))
if tenant ~= ARGV[1] then return {} end
trimmed = tonumber(trimmed or 0)
local length, first = redis.call('LLEN', KEYS[2]), math.max(0, tonumber(ARGV[2]) - trimmed)
return { trimmed, length, state, redis.call('LRANGE', KEYS[2], first, first + tonumber(ARGV[3]) - 1) }
