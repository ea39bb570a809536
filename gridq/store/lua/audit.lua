-- Read, at one instant, all that must fit together. Nothing is written.
-- ARGV  how many items there may be to read at most, each own key counting as ten, any other as one
-- gives {own key without its prefix, its items …} of each key that counts: of a job without its plan, and of its outputs that
--       they are there; {} where there is more to read, for nobody is served meanwhile. Before them {'', now in ms}
local C = redis.call
local most, looked = tonumber(ARGV[1]), C('DBSIZE')
local SCORED = {leases = true, delays = true, deadlines = true, inbox = true, answers = true, jobs = true, ended_jobs = true}
local READ = {hash = 'HGETALL', set = 'SMEMBERS', zset = 'ZRANGE'}
local WHOLE = {lease_info = true, slots = true, seat = true, classes = true, reservations = true, reserved = true,
  parked_agents = true, queues = true, parked = true, waiting = true, ready = true, quarantine = true, chained = true}
local clock = C('TIME')
local found, seen, cursor = {{'', clock[1] * 1000 + math.floor(clock[2] / 1000)}}, {}, '0'

local function job(key)  -- its plan (h, s) and its values are long
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

repeat
  local some = C('SCAN', cursor, 'MATCH', K .. '*', 'COUNT', 1000)
  cursor = some[1]
  for _, key in ipairs(some[2]) do
    local name = string.sub(key, #K + 1)
    local kind = string.match(name, '^[^:]*')
    if not seen[name] then
      seen[name] = true
      looked = looked + 9
      local items
      if kind == 'job' then items = job(key)
      elseif kind == 'submitted' then items = C('HMGET', key, 'agent', 'submitted_at')
      elseif kind == 'result' then items = {C('LLEN', key), string.match(C('LINDEX', key, 0), '^[^\n]*')}
      elseif SCORED[kind] then items = C('ZRANGE', key, 0, -1, 'WITHSCORES')
      elseif WHOLE[kind] then
        local sort = C('TYPE', key).ok
        items = sort == 'zset' and C('ZRANGE', key, 0, -1) or C(READ[sort], key)
      end
      if items then
        looked = looked + #items
        table.insert(items, 1, name)
        found[#found + 1] = items
      end
    end
  end
  if looked > most then return {} end
until cursor == '0'
return found
