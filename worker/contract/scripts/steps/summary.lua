-- The summaries of what a conversation's turns are not shown word for word any more.

-- How many messages wait for their summary at most, for one that comes too late: 4 windows and so many more.
local UNSUMMARIZED = 100

-- The version under whose number the summary stands that holds at this one; 0 for none.
local function summary_of(key, number, version)
  return redis.call('HEXISTS', key.history, 'summary:' .. int(number)) == 1 and int(number) or int(version.summary)
end

-- Lets a summary stand for the first `count` messages from this version on.
local function keep_summary(key, number, count, text)
  redis.call('HSET', key.history, 'summary:' .. int(number), count .. '\n' .. text)
  redis.call('HSET', key.conv, 'summary', int(number))
end

-- How many messages a summary stands for, and its text.
local function read_summary(key, number)
  local stored = number and redis.call('HGET', key.history, 'summary:' .. number)
  if not stored then return 0, '' end
  local count, text = string.match(stored, '^(%d+)\n(.*)$')
  return tonumber(count), text
end

-- Where the messages begin that a turn is shown, and the summary of what was before.
local function memory_window(key, memory, memory_k, number)
  local count = redis.call('LLEN', key.msgs)
  if memory == 'none' then return count, '' end
  if memory ~= 'summary' then return math.max(count - memory_k, 0), '' end
  local covered, summary = read_summary(key, number)
  return math.max(covered, count - 4 * memory_k - UNSUMMARIZED), summary
end

-- How many bytes of a conversation a turn is given at most: more than any model reads, and less than keeps a worker's
-- connection busy for long.
local WINDOW_BYTES = 16777216

-- The messages from `first` on, the oldest of those left out that make them too long together; and how many stand before.
local function window_of(key, first)
  local found, left, at = {}, WINDOW_BYTES, redis.call('LLEN', key.msgs)
  while at > first do
    local begin = math.max(first, at - 100)
    local messages = redis.call('LRANGE', key.msgs, int(begin), int(at - 1))
    for index = #messages, 1, -1 do
      left = left - #messages[index]
      if left < 0 then return reversed(found), begin + index end
      found[#found + 1] = messages[index]
    end
    at = begin
  end
  return reversed(found), at
end
