-- Notes that bytes of a file are on their way to a place outside of Redis: one that is not sealed until then is deleted
-- as if its time were over. Repeating the call puts that off; a file that is sealed already is left alone.
-- KEYS file due
-- ARGV file_id ttl_ms
-- Returns nothing.
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('ZADD', KEYS[2], int(now_ms() + tonumber(ARGV[2])), ARGV[1]) end
