-- Names that every script needs. The loader puts values for P (prefix of queues), K (prefix of gridq's own keys) and the settings.
local C = redis.call
local clock = C('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)  -- ms by the server's clock, the only one that counts
local FOREVER = 1e15

-- Return whether seat x is in a comma-separated list of excluded seats. '=seat' in the list excludes all others, including seats
-- that join later.
local function is_excluded(list, x)
  if list == '' then return false end
  list = ',' .. list .. ','
  if string.find(list, ',' .. x .. ',', 1, true) then return true end
  return string.find(list, ',=', 1, true) ~= nil and string.find(list, ',=' .. x .. ',', 1, true) == nil
end

local function words(text) return string.gmatch(text or '', '%S+') end  -- none for a missing field (false)

-- Return an escaped name, such as a queue's, as people read it. Escapes that are not printable ASCII stay: half a character is no JSON.
local function unescape(name)
  return (string.gsub(name, '%%(%x%x)', function(hex)
    local code = tonumber(hex, 16)
    return code >= 32 and code < 127 and string.char(code) or nil
  end))
end

local function is_free(q) return string.sub(q, 1, 6) == 'gridq:' end  -- built-in stages and the user's own code cost no money

-- Return micro-dollars as dollars, with two decimals or as many as needed.
local function dollars(micro) return '$' .. string.gsub(string.format('%.6f', micro / 1000000), '(%.%d%d%d-)0*$', '%1') end

local function value_length(value)  -- in bytes, of what the value or link stands for
  if string.sub(value, 1, 1) == '@' then return C('STRLEN', K .. 'value:' .. string.sub(value, 2)) end
  return #value
end

local function unlink_value(value)  -- delete the value that a link points to
  if string.sub(value, 1, 1) == '@' then C('UNLINK', K .. 'value:' .. string.sub(value, 2)) end
end

local function job_key(job) return K .. 'job:' .. job end

-- A lease is job:step:epoch:attempt:nonce. Return its job, its step and the rest, the fence.
local function parse_lease(lease)
  local job, step, fence = string.match(lease, '^([^:]+):(%d+):(.+)$')
  return job, step, fence
end

-- Return the header of a step: queue cost scope dependents refs input path ('-' for none), written by admission. For a step with
-- a chain the queue is the one where it waits or waited last (lib/fallbacks.lua). `h`: the field, if the caller has read it.
local function read_header(job, step, h)
  h = h or C('HGET', job_key(job), 'header:' .. step)
  if not h then return nil end
  local q, cost, scope, dependents, refs, input, path = string.match(h, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  return {q = q, cost = cost, scope = scope ~= '-' and scope or nil, dependents = dependents, refs = refs,
    input = input == '1', path = path}
end
