-- fast_forward.lua: move every time that a queue has stored into the past, as if time had passed. For tests only.
-- KEYS  _any: any key of a queue, which tells a cluster where to run this (left out for a whole database)
-- ARGV  age_us (number): how much time passes
--       whole (flag): 1 for every key of the database, 0 for the queues that are given
--       ageing_json: a JSON object from the word of a key to where it stores times: see fast_forward.py
--       queues_json: a JSON list of {prefix, separator}; for a whole database the prefix is '' and found by the words
-- Returns nothing. It finds its keys with KEYS, which only a test server can afford.
local ageing, queues = cjson.decode(ageing_json), cjson.decode(queues_json)
--@include envelope
local CHUNK = 1000 -- how many arguments `unpack` can pass

local function write(command, key, arguments)
  for at = 1, #arguments, CHUNK do
    redis.call(command, key, unpack(arguments, at, math.min(at + CHUNK - 1, #arguments)))
  end
end

local function earlier(time_us)
  return math.max(time_us - age_us, 1)
end

local function older_message(stored)
  if not is_message(stored) then return stored end
  return string.sub(stored, 1, 17) .. struct.pack('>I8', earlier(time_of(stored))) .. string.sub(stored, 26)
end

-- A record is JSON. Only the digits are replaced: decoding and encoding could change fields of other versions.
local function older_record(record)
  for _, name in ipairs({'published', 'claimed', 'finished'}) do
    record = string.gsub(record, '("' .. name .. '":")(%d+)"', function(head, time_us)
      return head .. string.format('%.0f', earlier(tonumber(time_us))) .. '"'
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

-- How to age each kind of storage, by the Redis type of the key. A score of 0 means "due already" and stays.
local age = {
  scores = {zset = function(key)
    local found, arguments = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES'), {}
    for at = 1, #found, 2 do
      local score = tonumber(found[at + 1])
      if score > 0 and score < math.huge then
        arguments[#arguments + 1] = string.format('%.0f', earlier(score))
        arguments[#arguments + 1] = found[at]
      end
    end
    write('ZADD', key, arguments)
  end},
  message_list = {list = function(key) age_list(key, older_message) end},
  message_hash = {hash = function(key)
    local pairs_of = redis.call('HGETALL', key)
    for at = 2, #pairs_of, 2 do pairs_of[at] = older_message(pairs_of[at]) end
    write('HSET', key, pairs_of)
  end},
  records = {list = function(key) age_list(key, older_record) end},
  -- A schedule: since when its ticks count, so that those of the time that passes are due.
  schedule = {hash = function(key)
    for _, field in ipairs({'created', 'after', 'last'}) do
      local time = tonumber(redis.call('HGET', key, field) or nil)
      if time then redis.call('HSET', key, field, string.format('%.0f', earlier(time))) end
    end
  end},
  -- A consumer group: the lease of its query, and the messages of its batches (see lib/batch.lua).
  group = {
    hash = function(key)
      local deadline = tonumber(redis.call('HGET', key, 'deadline'))
      if deadline then redis.call('HSET', key, 'deadline', string.format('%.0f', earlier(deadline))) end
    end,
    list = function(key)
      age_list(key, function(member)
        local count = string.match(member, '^%d+:') or ''
        return count .. older_message(string.sub(member, #count + 1))
      end)
    end,
  },
}

local aged = {} -- a key can look like that of two queues
local function apply(key, how)
  local change = age[how] and age[how][redis.call('TYPE', key).ok]
  if not change or aged[key] then return end
  aged[key] = true
  change(key)
end

local function shorten_ttl(key)
  local left = redis.call('PTTL', key)
  if left < 0 then return end
  redis.call('PEXPIRE', key, math.floor(left - age_us / 1000)) -- if nothing is left, Redis deletes the key
end

-- Wake a waiting consumer: it sleeps until a deadline that has moved.
local function wake(queue)
  local wakeup = queue[1] .. queue[2] .. 'wakeup'
  local waits = redis.call('EXISTS', queue[1] .. queue[2] .. 'leases', queue[1] .. queue[2] .. 'delayed') > 0
  if waits and redis.call('EXISTS', wakeup) == 0 then redis.call('LPUSH', wakeup, '1') end
end

-- The word of a key of this queue: 'leases', or 'records::' of `records::<list>`; nil for keys of others.
local function word_of(key, queue)
  local head = queue[1] .. queue[2]
  if string.sub(key, 1, #head) ~= head then return end
  local rest = string.sub(key, #head + 1)
  local separator = string.find(rest, queue[2], 1, true)
  return separator and string.sub(rest, 1, separator - 1) .. '::' or rest
end

-- Where in a key the prefix of its queue ends, if this word follows there.
local function prefix_before(word, key, separator)
  if string.sub(word, -2) ~= '::' then
    local tail = separator .. word
    return string.sub(key, -#tail) == tail and string.sub(key, 1, -#tail - 1)
  end
  local at = string.find(key, separator .. string.sub(word, 1, -3) .. separator, 2, true)
  return at and string.sub(key, 1, at - 1)
end

-- The queues that have keys in this database, with this separator.
local function find_queues(keys, separator)
  local found, seen = {}, {[''] = true}
  for _, key in ipairs(keys) do
    for word in pairs(ageing) do
      local prefix = prefix_before(word, key, separator)
      if prefix and not seen[prefix] then
        seen[prefix] = true
        found[#found + 1] = {prefix, separator}
      end
    end
  end
  return found
end

local keys = redis.call('KEYS', '*')
if whole then queues = find_queues(keys, queues[1][2]) end
for _, queue in ipairs(queues) do
  for _, key in ipairs(keys) do
    local word = word_of(key, queue)
    if word and ageing[word] then
      apply(key, ageing[word])
      if not whole then shorten_ttl(key) end
    end
  end
  wake(queue)
end
if whole then
  for _, key in ipairs(keys) do shorten_ttl(key) end
end
