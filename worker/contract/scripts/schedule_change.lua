-- Changes when a schedule fires, unless somebody else has changed it since it was read.
-- KEYS schedule schedules crons gone, and where it posts to a conversation: planned conv msgs turns convs history
-- ARGV schedule_id revision cron timezone paused next_ms next_turn   (next_ms and next_turn: '' for never)
-- Returns 1, or 0 when it has been changed, or is gone.
local key = schedule_keys()
if redis.call('HGET', key.schedule, 'revision') ~= ARGV[2] then return 0 end
redis.call('HSET', key.schedule, 'cron', ARGV[3], 'timezone', ARGV[4], 'paused', ARGV[5])
redis.call('HINCRBY', key.schedule, 'revision', 1)
plan(key, ARGV[1], ARGV[6], ARGV[7])
return 1
