-- Forgets what is held against a model: circuit, cool-down and slower pace. Its limits go on counting.
-- KEYS record unwell
-- ARGV name channel
-- Returns 1, or 0 when nothing is known of it.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[1], 'state', 'probe', 'open_until', 'opens', 'cool_until', 'cools', 'ramp_ms', 'factor', 'mark',
  'cut_at', 'judged_until', 'hold_ms', 'trims', 'silent', 'grown_at', 'base', 'won', 'lost', 'paused', 'aged_at', 'counted_at',
  'failures', 'since', 'good', 'bad', 'next_request', 'next_token', 'next_item', 'next_item_token', 'chat_waits',
  'item_waits', 'item_cost', 'owed')
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[1] .. ' 1')
return 1
