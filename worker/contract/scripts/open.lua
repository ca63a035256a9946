-- Creates a conversation.
-- KEYS conv
-- ARGV version memory_k settings
-- Returns { 1, created_at } or { 0, created_at of the one that exists }.
local created = redis.call('HGET', KEYS[1], 'created_at')
if created then return { 0, created } end
created = int(now_ms())
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'created_at', created, 'memory_k', ARGV[2], 'settings', ARGV[3])
return { 1, created }
