-- Reads a schedule together with the time.
-- KEYS schedule
-- ARGV (none)
-- Returns { now, field, value, … }: only the time when there is no such schedule.
return { int(now_ms()), unpack(redis.call('HGETALL', KEYS[1])) }
