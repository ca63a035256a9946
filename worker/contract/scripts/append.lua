-- Adds an attempt's events to the turn's log. A repeated call adds nothing twice.
-- KEYS turn log
-- ARGV fence channel keep position events…   (position: how many events of this attempt came before)
-- Returns 1, or 0 when the attempt no longer holds the turn.
local state, fence, appended, trimmed = unpack(redis.call('HMGET', KEYS[1], 'state', 'fence', 'appended', 'trimmed'))
if state ~= 'running' or fence ~= ARGV[1] then return 0 end

local known = tonumber(appended) - tonumber(ARGV[4])
if known < 0 then return redis.error_reply('events are missing before position ' .. ARGV[4]) end
local events = take(5 + known, math.max(0, #ARGV - 4 - known))
if #events > 0 then
  emit(KEYS[1], KEYS[2], ARGV[2], tonumber(ARGV[3]), events, trimmed or 0)
  redis.call('HINCRBY', KEYS[1], 'appended', #events)
end
return 1
