-- Forgets what is held against a model: circuit, cool-down and slower pace. Its limits go on counting.
-- KEYS record unwell
-- ARGV name channel
-- Returns 1, or 0 when nothing is known of it.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[1], 'state', 'probe', 'open_until', 'opens', 'cool_until', 'cools', 'factor', 'growth', 'grown_at',
  'base', 'failures', 'since', 'good', 'bad', 'next_request', 'next_token', 'next_item', 'chat_waits')
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[1] .. ' 1')
return 1
