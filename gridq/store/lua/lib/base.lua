-- Names every script needs. P (queue prefix), K (prefix of gridq's own keys) and the limits are set above by the loader.
local C = redis.call
local clock = C('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)  -- ms, the server's clock: no machine's clock is ever asked
local FOREVER = 1e15

-- Whether a comma-separated list of seats, those that may not take a stage, has seat x. '=seat' in it has all others, also those
-- that are not there yet.
local function is_excluded(list, x)
  if list == '' then return false end
  list = ',' .. list .. ','
  if string.find(list, ',' .. x .. ',', 1, true) then return true end
  return string.find(list, ',=', 1, true) ~= nil and string.find(list, ',=' .. x .. ',', 1, true) == nil
end

local function words(text) return string.gmatch(text or '', '%S+') end  -- of a missing field (false) none

local function is_free(q) return string.sub(q, 1, 6) == 'gridq:' end  -- built-in stages and one's own code cost no money

-- Micro-dollars as dollars, with two decimals or as many as it takes.
local function dollars(micro) return '$' .. string.gsub(string.format('%.6f', micro / 1000000), '(%.%d%d%d-)0*$', '%1') end

local function unlink_value(value)  -- drop what a link points to
  if string.sub(value, 1, 1) == '@' then C('UNLINK', K .. 'value:' .. string.sub(value, 2)) end
end

local function job_key(job) return K .. 'job:' .. job end

-- lease = job:step:epoch:attempt:nonce
local function parse_lease(lease)
  local job, step, rest = string.match(lease, '^([^:]+):(%d+):(.+)$')
  return job, step, rest
end

-- header = queue cost scope dependents refs input path ('-' where empty); written by admission; the queue of a step with a
-- chain is the one where it stands or stood last (lib/chain.lua). `h` is the field's text where the caller has read it.
local function read_header(job, step, h)
  h = h or C('HGET', job_key(job), 'header:' .. step)
  if not h then return nil end
  local q, cost, scope, dependents, refs, input, path = string.match(h, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  return {q = q, cost = cost, scope = scope ~= '-' and scope or nil, dependents = dependents, refs = refs,
    input = input == '1', path = path}
end
