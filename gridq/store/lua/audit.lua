-- Read, at one instant, all records that must agree. Nothing is written.
--
-- ARGS
--   limit  how many items there may be to read: each of gridq's own keys counts as ten, any other key as one
-- RETURNS  {{'', now in ms, key that holds something else than it should, what the server said of it …}, {key without its prefix, its items …} …}: of a job everything except its plan, of its outputs only that they
--          exist; {} if there is more to read, as nobody else is served meanwhile
local C = redis.call
local limit, count = tonumber(ARGV[1]), C('DBSIZE')
local SCORED = {leases = true, delays = true, deadlines = true, inbox = true, answers = true, jobs = true, ended_jobs = true}
local READ = {hash = 'HGETALL', set = 'SMEMBERS', zset = 'ZRANGE'}
local WHOLE = {lease_info = true, slots = true, seat = true, classes = true, reservations = true, reserved = true,
  parked_agents = true, queues = true, parked = true, waiting = true, ready = true, quarantine = true, chained = true,
  lost_slots = true}
local clock = C('TIME')
local found, seen, cursor = {{'', clock[1] * 1000 + math.floor(clock[2] / 1000)}}, {}, '0'

local function read_job(key)  -- its plan (header, spec) and its values are long
  local kept, fields = {}, C('HGETALL', key)
  for i = 1, #fields, 2 do
    local sort = string.match(fields[i], '^(%a+):')
    if fields[i] ~= 'input' and sort ~= 'spec' and sort ~= 'header' then
      kept[#kept + 1] = fields[i]
      kept[#kept + 1] = sort == 'output' and '' or fields[i + 1]
    end
  end
  return kept
end

local function read_key(key, kind)  -- its items, nil if they do not count
  if kind == 'job' then return read_job(key)
  elseif kind == 'remains' then return {}
  elseif kind == 'submitted' then return C('HMGET', key, 'agent', 'submitted_at')
  elseif kind == 'result' then return {C('LLEN', key), string.match(C('LINDEX', key, 0), '^[^\n]*')}
  elseif SCORED[kind] then return C('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif WHOLE[kind] then
    local sort = C('TYPE', key).ok
    if not READ[sort] then error('it is a ' .. sort, 0) end
    return sort == 'zset' and C('ZRANGE', key, 0, -1) or C(READ[sort], key)
  end
end

repeat
  local page = C('SCAN', cursor, 'MATCH', K .. '*', 'COUNT', 1000)
  cursor = page[1]
  for _, key in ipairs(page[2]) do
    local name = string.sub(key, #K + 1)
    local kind = string.match(name, '^[^:]*')
    if not seen[name] then
      seen[name] = true
      count = count + 9
      local is_read, items = pcall(read_key, key, kind)
      if not is_read then
        table.insert(found[1], name)
        table.insert(found[1], tostring(type(items) == 'table' and items.err or items))
      elseif items then
        count = count + #items
        table.insert(items, 1, name)
        found[#found + 1] = items
      end
    end
  end
  if count > limit then return {} end
until cursor == '0'
return found
