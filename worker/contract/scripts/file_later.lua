-- Lets a file that is to be deleted wait: whoever deletes it has as long, and if it is there then it is listed again.
-- KEYS due
-- ARGV file_id wait_ms
-- Returns nothing.
redis.call('ZADD', KEYS[1], 'XX', int(now_ms() + tonumber(ARGV[2])), ARGV[1])
