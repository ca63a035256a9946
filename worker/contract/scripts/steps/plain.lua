-- Time, numbers, and the arguments of a script. Time is Redis's own; all times are Unix milliseconds.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A plain integer: tostring() of a large number would write an exponent.
local function int(number)
  return string.format('%.0f', number)
end

-- Takes `count` values of ARGV from `at` on; returns them and the position behind them.
local function take(at, count)
  local values = {}
  for index = at, at + count - 1 do values[#values + 1] = ARGV[index] end
  return values, at + count
end

-- Takes those of `count` events of an attempt, which stand in ARGV from `at` on, that its log does not hold.
-- position: how many of its events came before them; appended: how many it has
local function take_new(at, count, position, appended)
  local known = math.max(0, tonumber(appended) - position)
  return (take(at + known, count - known))
end

-- Adds values to the end of a list, of which a command takes so many; returns the list's length.
local function push(name, values)
  local length
  for start = 1, #values, 500 do
    length = redis.call('RPUSH', name, unpack(values, start, math.min(start + 499, #values)))
  end
  return length
end

-- Adds to a sum. One that no number holds any more stays as it is: it must not break off the script that adds.
local function add(key, field, amount)
  redis.pcall('HINCRBY', key, field, amount)
end
