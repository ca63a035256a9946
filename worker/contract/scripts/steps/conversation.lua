-- A conversation: what it remembers, and its versions.

-- The keys that live and go with a conversation.
local LIVING = { 'conv', 'msgs', 'turns', 'history' }

-- The keys of a conversation's history: what is remembered, and what was.
local function conversation_keys()
  return { conv = KEYS[1], msgs = KEYS[2], history = KEYS[3] }
end

-- Makes a conversation that nobody has given settings.
local function begin_conversation(key, version, memory_k, ttl_ms)
  redis.call('HSET', key.conv, 'version', version, 'created_at', int(now_ms()), 'memory_k', memory_k, 'settings', '{}',
    'ttl_ms', ttl_ms)
end

-- Lists a conversation that is new. Two others are looked at and forgotten where they have expired, so the list holds
-- little more than what lives, whether or not anybody ever reads it.
local function list_new(key, conversation_id)
  for _, other in ipairs(redis.call('ZRANDMEMBER', key.convs, 2)) do
    if redis.call('EXISTS', renamed(key.conv, conversation_id, other)) == 0 then redis.call('ZREM', key.convs, other) end
  end
  redis.call('ZADD', key.convs, int(now_ms()), conversation_id)
end

-- Gives a conversation its next version, which stands in `history` under its number. `more` is what only this
-- kind has, `summary` the version whose summary it goes on from, 0 for none.
local function add_version(key, kind, more, summary)
  local number = redis.call('HINCRBY', key.conv, 'head', 1)
  redis.call('HSET', key.history, number, '{"kind":"' .. kind .. '","at":' .. int(now_ms()) .. more .. ',"messages":'
    .. redis.call('LLEN', key.msgs) .. ',"summary":' .. summary .. '}')
  return number
end

-- A conversation that came with messages, or had them before there were versions, begins with one that holds all.
local function adopt(key)
  if redis.call('HEXISTS', key.conv, 'head') == 1 or redis.call('EXISTS', key.msgs) == 0 then return end
  redis.call('HSET', key.conv, 'baseline', add_version(key, 'snapshot', '', 0))
end

-- Adds what came of a turn to memory, under a version of its own.
local function learn(key, turn_id, messages)
  if #messages == 0 then return end
  adopt(key)
  push(key.msgs, messages)
  add_version(key, 'turn', ',"turn_id":"' .. turn_id .. '"', redis.call('HGET', key.conv, 'summary') or 0)
end

-- The lines of a text.
local function lines_of(text)
  local found = {}
  for line in string.gmatch(text, '[^\n]+') do found[#found + 1] = line end
  return found
end

-- Lets what a turn has done so far stay in memory, where it is cancelled while nobody runs it.
local function learn_left(key, turn_id)
  learn(key, turn_id, lines_of(redis.call('HGET', key.turn, 'left') or ''))
end

-- Lets what was made anew live as long as its conversation.
local function settle_lives(key)
  local left = redis.call('PTTL', key.conv)
  if left < 0 then return end
  for _, word in ipairs({ 'msgs', 'history' }) do redis.call('PEXPIRE', key[word], left) end
end

-- The version that made this one what it is, past all checkouts; its number and what is known of it.
local function resolved(key, number)
  while number > 0 do
    local version = cjson.decode(redis.call('HGET', key.history, int(number)))
    if not version.to then return number, version end
    number = version.to
  end
  return 0, { messages = 0, summary = 0 }
end

-- The numbers of head and baseline, or a refusal of a version that is not between them.
local function bounds(key, number)
  local head = tonumber(redis.call('HGET', key.conv, 'head') or 0)
  local baseline = tonumber(redis.call('HGET', key.conv, 'baseline') or 0)
  local refusal
  if number and (number > head or number < 0) then
    refusal = { 'unknown', head, baseline }
  elseif number and number < baseline then
    refusal = { 'compacted', head, baseline }
  end
  return head, baseline, refusal
end

local function reversed(values)
  local turned = {}
  for index = #values, 1, -1 do turned[#turned + 1] = values[index] end
  return turned
end

-- The versions that have to be taken, the latest first, and those to be added, the oldest first, to get from one
-- version to another.
local function way(key, from, to)
  local taken, added = {}, {}
  from, to = (resolved(key, from)), (resolved(key, to))
  while from ~= to do
    if from > to then
      taken[#taken + 1] = from
      from = resolved(key, from - 1)
    else
      added[#added + 1] = to
      to = resolved(key, to - 1)
    end
  end
  return taken, reversed(added)
end

-- The messages of a version's own turn: memory has them, or has left them.
local function messages_of(key, number)
  local left = redis.call('HGET', key.history, 'messages:' .. int(number))
  if left then return lines_of(left) end
  local _, version = resolved(key, number)
  local first = 0
  if version.kind ~= 'snapshot' then
    local _, before = resolved(key, number - 1)
    first = before.messages
  end
  return redis.call('LRANGE', key.msgs, int(first), int(version.messages - 1))
end

-- How many messages are kept that memory has left.
local function left_behind(key)
  local count, fields = 0, redis.call('HGETALL', key.history)
  for index = 1, #fields, 2 do
    if string.find(fields[index], 'messages:', 1, true) == 1 then
      count = count + 1 + select(2, string.gsub(fields[index + 1], '\n', ''))
    end
  end
  return count
end
