-- Reads a turn's log behind a sequence number. Writes nothing.
-- KEYS turn log
-- ARGV tenant after limit
-- Returns { trimmed, length of the log, state, events } or { } when the tenant has no such turn.
local record = redis.call('HMGET', KEYS[1], 'tenant', 'state', 'trimmed')
if record[1] ~= ARGV[1] then return {} end
local trimmed, length = tonumber(record[3] or 0), redis.call('LLEN', KEYS[2])
local first = math.max(0, tonumber(ARGV[2]) - trimmed)
return { trimmed, length, record[2], redis.call('LRANGE', KEYS[2], first, first + tonumber(ARGV[3]) - 1) }
