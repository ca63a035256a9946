-- Erases an agent's conversation.
-- KEYS versions versioned
-- ARGV conversation_id
-- Returns 1.
redis.call('UNLINK', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
