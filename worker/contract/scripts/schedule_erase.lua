-- Puts a template without a conversation's items in the place of the one that was read; a schedule of which nothing is
-- left is forgotten, and its tombstone says why.
-- KEYS schedule schedules crons gone
-- ARGV schedule_id sha1 (of the template that was read) template ('' where nothing is left) gone_ms
-- Returns 1, or 0 when the template has changed since, or is gone.
local key, schedule_id = schedule_keys(), ARGV[1]
local template = redis.call('HGET', key.schedule, 'template')
if not template or redis.sha1hex(template) ~= ARGV[2] then return 0 end
if ARGV[3] ~= '' then
  redis.call('HSET', key.schedule, 'template', ARGV[3])
else
  forget_schedule(key, schedule_id, renamed(key.gone, schedule_id, ''), ARGV[4])
  redis.call('SET', key.gone, 'erased', 'PX', ARGV[4])
end
return 1
