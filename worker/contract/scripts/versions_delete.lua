-- Erases an agent's conversation.
-- KEYS versions versioned
-- ARGV conversation_id
redis.call('UNLINK', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
