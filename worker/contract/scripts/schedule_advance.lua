-- Takes a schedule on to its next tick, and writes down what came of the one before. Only one of several that
-- try it at once succeeds; what an older tick came to never replaces what a newer one did.
-- KEYS schedule schedules crons gone, and where it posts to a conversation: planned conv msgs turns convs history
-- ARGV schedule_id expected_ms next_ms next_turn token tick_ms last_fire
--      (next_ms and next_turn: '' for never; tick_ms and last_fire: '' when nothing was fired)
-- Returns 1, or 0 when the schedule does not stand at the expected tick any more.
local key = schedule_keys()
local next_ms, last_ms, by = unpack(redis.call('HMGET', key.schedule, 'next_ms', 'last_ms', 'by'))
if not next_ms then return 0 end
if ARGV[6] ~= '' and tonumber(ARGV[6]) > tonumber(last_ms or 0) then
  redis.call('HSET', key.schedule, 'last_ms', ARGV[6], 'last_fire', ARGV[7])
end
if by == ARGV[5] then return 1 end
if next_ms ~= ARGV[2] then return 0 end
redis.call('HSET', key.schedule, 'by', ARGV[5])
plan(key, ARGV[1], ARGV[3], ARGV[4])
return 1
