-- fast_forward.lua: everything that a queue remembers gets older, as if time had passed. For tests.
-- KEYS  anchor: any key of a queue, which tells a cluster where to run this (left out for a whole database)
-- ARGV  age_us: how much older | whole: 1 for every key of the database, 0 for the queues that are named
--       ageing: a JSON object, word of a key to how it ages: see fast_forward.py
--       queues: a JSON list of {prefix, separator}; for a whole database the prefix is '' and found by the words
-- Returns how many keys have changed. It names its keys by itself, which is for test servers only.
local age_us, whole = tonumber(ARGV[1]), ARGV[2] == '1'
local ageing, queues = cjson.decode(ARGV[3]), cjson.decode(ARGV[4])
--@include envelope
local CHUNK = 1000 -- what `unpack` can carry

local function write(verb, key, words)
  for at = 1, #words, CHUNK do
    redis.call(verb, key, unpack(words, at, math.min(at + CHUNK - 1, #words)))
  end
end

-- A moment that was before the beginning of all time is its beginning.
local function earlier(moment)
  return math.max(moment - age_us, 1)
end

local function older(stored)
  if not is_message(stored) then return stored end
  return string.sub(stored, 1, 17) .. struct.pack('>I8', earlier(time_of(stored))) .. string.sub(stored, 26)
end

-- A record is a text of JSON. To decode it and encode it again could change what is not ours.
local function older_record(record)
  for _, name in ipairs({'published', 'claimed', 'finished'}) do
    record = string.gsub(record, '("' .. name .. '":")(%d+)"', function(head, moment)
      return head .. string.format('%.0f', earlier(tonumber(moment))) .. '"'
    end)
  end
  return record
end

local function age_list(key, change)
  local values = redis.call('LRANGE', key, 0, -1)
  for place, value in ipairs(values) do values[place] = change(value) end
  redis.call('DEL', key)
  write('RPUSH', key, values)
end

-- How a key of each Redis type gets older. What has a score of 0 is due since ever, and stays so.
local age = {
  moments = {zset = function(key)
    local found, words = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
    for at = 1, #found, 2 do
      local moment = tonumber(found[at + 1])
      if moment > 0 then
        words[#words + 1] = string.format('%.0f', earlier(moment))
        words[#words + 1] = found[at]
      end
    end
    write('ZADD', key, words)
  end},
  line = {list = function(key) age_list(key, older) end},
  bodies = {hash = function(key)
    local words = redis.call('HGETALL', key)
    for at = 2, #words, 2 do words[at] = older(words[at]) end
    write('HSET', key, words)
  end},
  records = {list = function(key) age_list(key, older_record) end},
  -- Of a consumer group: the lease of its query, and the messages of its claims (see lib/member.lua).
  claims = {
    hash = function(key)
      local deadline = tonumber(redis.call('HGET', key, 'deadline'))
      if deadline then redis.call('HSET', key, 'deadline', string.format('%.0f', earlier(deadline))) end
    end,
    list = function(key)
      age_list(key, function(member)
        local counted = string.match(member, '^%d+:') or ''
        return counted .. older(string.sub(member, #counted + 1))
      end)
    end,
  },
}

local changed = {}
local function apply(key, how)
  local ages = age[how] and age[how][redis.call('TYPE', key).ok]
  if not ages or changed[key] then return end
  changed[key] = true
  ages(key)
end

local function shorten(key)
  local left = redis.call('PTTL', key)
  if left < 0 then return end
  changed[key] = true
  redis.call('PEXPIRE', key, math.floor(left - age_us / 1000)) -- none is left: the key goes
end

-- Whoever waits has looked at the old deadlines, and must look again.
local function ring(queue)
  local bell = queue[1] .. queue[2] .. 'bell'
  local waits = redis.call('EXISTS', queue[1] .. queue[2] .. 'leases', queue[1] .. queue[2] .. 'delayed') > 0
  if waits and redis.call('EXISTS', bell) == 0 then redis.call('LPUSH', bell, '1') end
end

local function starts(text, head)
  return string.sub(text, 1, #head) == head
end

-- What a key of this queue is, by its word: 'leases', or 'line' of `line::<tenant>`.
local function word_of(key, queue)
  local head = queue[1] .. queue[2]
  if not starts(key, head) then return end
  local rest = string.sub(key, #head + 1)
  local open = string.find(rest, queue[2], 1, true)
  return open and string.sub(rest, 1, open - 1) .. '::' or rest
end

-- The queues that have keys here: what stands before a separator and a word of ours.
local function queues_among(keys)
  local found, seen = {}, {}
  for _, key in ipairs(keys) do
    for _, queue in ipairs(queues) do
      for word in pairs(ageing) do
        local tail = queue[2] .. word
        local prefix = string.sub(key, 1, -#tail - 1)
        if string.sub(key, -#tail) == tail and prefix ~= '' and not seen[prefix .. queue[2]] then
          seen[prefix .. queue[2]] = true
          found[#found + 1] = {prefix, queue[2]}
        elseif string.sub(word, -2) == '::' then
          -- A queue may have nothing but the line of a tenant, or the records of a list.
          local at = string.find(key, queue[2] .. string.sub(word, 1, -3) .. queue[2], 2, true)
          prefix = at and string.sub(key, 1, at - 1)
          if prefix and not seen[prefix .. queue[2]] then
            seen[prefix .. queue[2]] = true
            found[#found + 1] = {prefix, queue[2]}
          end
        end
      end
    end
  end
  return found
end

local keys = redis.call('KEYS', '*')
if whole then queues = queues_among(keys) end
for _, queue in ipairs(queues) do
  for _, key in ipairs(keys) do
    local word = word_of(key, queue)
    if word and ageing[word] then
      apply(key, ageing[word])
      if not whole then shorten(key) end
    end
  end
  ring(queue)
end
if whole then
  for _, key in ipairs(keys) do shorten(key) end
end
local count = 0
for _ in pairs(changed) do count = count + 1 end
return count
