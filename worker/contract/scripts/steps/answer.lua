-- Answers that are kept for later batches.

-- Notes until when an answer, or who asks for it, is there, and forgets those that are gone.
local function list_answer(answers, digest, now, lives_ms)
  redis.call('ZREMRANGEBYSCORE', answers, '-inf', int(now))
  local known = tonumber(redis.call('ZSCORE', answers, digest) or 0)
  redis.call('ZADD', answers, int(math.max(known, now + tonumber(lives_ms))), digest)
  if redis.call('PTTL', answers) < tonumber(lives_ms) then redis.call('PEXPIRE', answers, lives_ms) end
end
