-- Looks for an answer that was kept, or lets one caller at a time ask for it; who asks says so again while it does.
-- KEYS answer asking answers
-- ARGV digest token max_age_ms hold_ms goes_on (1 from who asks already, else 0)
-- Returns { 'known', the answer } | { 'ask' } (ask, for hold_ms nobody else does) | { 'wait' } (somebody else asks)
--      | { 'lost' } (to who went on: another asks now, or the answers were erased).
local now = now_ms()
if ARGV[5] == '1' then
  if redis.call('GET', KEYS[2]) ~= ARGV[2] then return { 'lost' } end
else
  local at, answer = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (.*)$')
  if at and now - tonumber(at) <= tonumber(ARGV[3]) then return { 'known', answer } end
  local asking = redis.call('GET', KEYS[2])
  if asking and asking ~= ARGV[2] then return { 'wait' } end
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
list_answer(KEYS[3], ARGV[1], now, ARGV[4])
return { 'ask' }
