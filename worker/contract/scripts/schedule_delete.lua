-- Deletes a schedule. A worker that is about to fire it meets the tombstone of the turn.
-- KEYS schedule schedules crons gone, and where it posts to a conversation: planned conv msgs turns convs history
-- ARGV schedule_id gone_ms
-- Returns 1, or 0 when there was none.
local key, schedule_id = schedule_keys(), ARGV[1]
local was = redis.call('EXISTS', key.schedule)
if was == 1 then forget_schedule(key, schedule_id, renamed(key.gone, schedule_id, ''), ARGV[2]) end
if key.planned then
  redis.call('ZREM', key.planned, schedule_id)
  stay(key, schedule_id)
end
return was
