-- Meters and budgets: how much of a resource may be used in a window, how much was used, and how much the running work reserves.
--
-- A budget is all meters of one account, as one text: 'resource/window/limit/used/reserved/resets_at' of each, space separated.
--   resource   money (micro-dollars), tokens (in and out), requests (stages that a seat took), jobs, parallel (stages that run now),
--              gpu_seconds (in ms: the time that stages used a device; only seats with an hourly price, which may be 0, count it)
--   window     month, week or day of the calendar; '5h' (m, h, d): so long, from its first use; '-': none, for parallel
--   resets_at  the window's end in ms; '' if a window of the second kind has not begun, or there is no calendar yet
-- A seat has two budgets of its own in its record: `own` (by its machine) and `grid` (by the quotas file). The hash `meters` has
-- the shared ones, by account: the whole grid (g), owners (o:<owner>), model families (f:<family>), agents (a:<agent>), teams
-- (t:<team>). A seat's field `shared_budgets` lists those that apply to it: names, and '<queue>=<name>,<name>' for those of a
-- single queue. Limits come from `limits`: m:<account> → 'resource/window/limit …'. A new window begins with a ledger entry
-- `refill`.

-- Return the length in ms of a window that begins with its first use, nil for any other.
local function window_length(kind)
  local n, unit = string.match(kind, '^(%d+)([mhd])$')
  return n and n * (unit == 'm' and 60000 or unit == 'h' and 3600000 or 86400000)
end

-- Bring a meter up to date: a window that is over is empty again. If the clock was set back, its end is computed anew. The longest days,
-- weeks and months are those in which clocks are put back.
local function refresh_meter(m)
  local length = window_length(m.window)
  local hours = m.window == 'day' and 25 or m.window == 'week' and 169 or m.window == 'month' and 745
  if length and m.resets_at and m.resets_at - NOW > length then m.resets_at = NOW + length
  elseif hours and m.resets_at and m.resets_at - NOW > hours * 3600000 then m.resets_at = nil end
  if m.resets_at and m.resets_at <= NOW then m.used, m.resets_at, m.fresh = 0, nil, true end
  if not (m.resets_at or length or m.window == '-') then
    local _, stop = current_window(m.window)
    m.resets_at = stop
  end
  return m
end

local function parse_budget(text)
  local meters = {}
  for resource, kind, limit, used, reserved, resets_at in string.gmatch(text, '([%a_]+)/([^/]+)/(%d+)/(%d+)/(%d+)/(%d*)') do
    meters[#meters + 1] = refresh_meter({resource = resource, window = kind, limit = tonumber(limit), used = tonumber(used),
      reserved = tonumber(reserved), resets_at = tonumber(resets_at)})
  end
  return meters
end

-- The budgets that this call has opened: a later change must find the earlier ones.
local open_budgets = {}
local function open_budget(account, text)
  open_budgets[account] = open_budgets[account] or parse_budget(text)
  return open_budgets[account]
end

-- Return all budgets that apply to a seat, {seat, {name, meters, queues} …}, with the fields by which estimate_use prices a stage; nil
-- if there are none. `queues` is the set of queues that a budget is restricted to. `names`: the seat's `shared_budgets`, or the names
-- under which a lease was claimed.
local function budgets_of_seat(seat, own, grid, names, prices, hourly_price, stage_ms)
  if not (own or grid or names) then return nil end
  local budgets = {seat = seat, prices = prices, hourly_price = hourly_price, stage_ms = stage_ms}
  if own then budgets[1] = {name = 'own', meters = open_budget('own ' .. seat, own)} end
  if grid then budgets[#budgets + 1] = {name = 'grid', meters = open_budget('grid ' .. seat, grid)} end
  local list, queues = {}, {}
  for word in words(names) do
    local q, some = string.match(word, '^([^=]+)=(.*)$')
    for name in string.gmatch(some or word, '[^,]+') do
      if queues[name] == nil then list[#list + 1] = name end
      queues[name] = q and (queues[name] or {})
      if q then queues[name][q] = true end
    end
  end
  local unread = {}
  for _, name in ipairs(list) do if not open_budgets[name] then unread[#unread + 1] = name end end
  for i, text in ipairs(unread[1] and C('HMGET', K .. 'meters', unpack(unread)) or {}) do
    if text then open_budget(unread[i], text) end
  end
  for _, name in ipairs(list) do
    if open_budgets[name] then budgets[#budgets + 1] = {name = name, meters = open_budgets[name], queues = queues[name]} end
  end
  return budgets
end

-- Return how long a stage of a queue is expected to occupy a slot, in ms: as nine of ten lately did on the seat (`stage_ms`:
-- 'queue=ms …'), else as those of its slowest queue, else the timeout, which is the most it can.
local function expected_ms(stage_ms, q, timeout)
  local slowest
  for name, ms in string.gmatch(stage_ms or '', '(%S+)=(%d+)') do
    if name == q then return math.min(tonumber(ms), timeout) end
    slowest = math.max(slowest or 0, tonumber(ms))
  end
  return math.min(slowest or timeout, timeout)
end

-- Return how many tokens a stage of a queue will use, what they and its time cost at the seat's prices, and for how many ms it will
-- use the seat's device, nil if the seat does not count that. `tokens`: 'in out' by its estimate, with its own timeout in ms behind, and
-- 'g' and the ms that it declares, if it has them (false: no estimate).
local function estimate_use(budgets, q, tokens)
  local tokens_in, tokens_out, own_timeout, declared = string.match(tokens or '0 0', '^(%d+) (%d+) ?(%d*) ?g?(%d*)$')
  local price_in, price_out = string.match(budgets.prices or '0 0', '^(%d+) (%d+)$')
  local cost = math.ceil((tokens_in * price_in + tokens_out * price_out) / 1000000)
  local hour, timeout = string.match(budgets.hourly_price or '', '^(%d+) (%d+)$')
  local gpu_ms
  if hour and not is_free(q) then
    gpu_ms = tonumber(declared) or expected_ms(budgets.stage_ms, q, tonumber(own_timeout) or tonumber(timeout))
    cost = cost + math.min(math.ceil(hour * gpu_ms / 3600000), 1e12)  -- as MAX_USAGE in Python: larger sums are not exact
  end
  return tokens_in + tokens_out, cost, gpu_ms
end

-- Return the first meter without room for a stage of a queue, and its budget's name; nil if all have. `tokens`: its estimate as for
-- estimate_use; nil: only its declared cost counts. Of an estimate, no more than the limit is needed, so that a larger stage may
-- run in an empty window, unless the limit is 0.
local function find_shortage(budgets, q, declared, tokens)
  if not budgets then return nil end
  local free, money = is_free(q), tonumber(declared)
  if free and money == 0 then return nil end  -- stages that combine answers go on when money is used up
  local used, cost, gpu_ms = 0, 0, budgets.hourly_price and not free and 0 or nil
  if tokens ~= nil then used, cost, gpu_ms = estimate_use(budgets, q, tokens) end
  for _, budget in ipairs(budgets) do
    if not budget.queues or budget.queues[q] then
      for _, m in ipairs(budget.meters) do
        local need = 1
        if m.resource == 'money' then need = math.max(money, math.min(cost, math.max(m.limit, 1)))
        elseif m.resource == 'tokens' then need = math.max(1, math.min(used, m.limit))
        elseif m.resource == 'gpu_seconds' then need = math.max(1, math.min(gpu_ms or 0, m.limit)) end
        local counts = m.resource == 'money' or not free and (m.resource ~= 'gpu_seconds' or gpu_ms)
        if counts and m.used + m.reserved + need > m.limit then return m, budget.name end
      end
    end
  end
end

local function format_budget(meters)
  local texts = {}
  for i, m in ipairs(meters) do
    texts[i] = m.resource .. '/' .. m.window .. '/' .. int_text(m.limit) .. '/' .. int_text(m.used) .. '/' .. int_text(m.reserved) .. '/'
      .. (m.resets_at and int_text(m.resets_at) or '')
  end
  return table.concat(texts, ' ')
end

local OWN_BUDGETS = {own = true, grid = true}  -- the budgets that a seat shares with nobody

-- Add ledger entries for the windows that have begun; their use is entered after that.
local function record_resets(meters, name, seat)
  local own = OWN_BUDGETS[name]
  for _, m in ipairs(meters) do
    if m.fresh and m.window ~= '-' then
      local what = m.resource .. '/' .. m.window
      append_ledger(ledger_entry('refill', '', '', '', own and seat or '', own and '' or name, '', own and name .. '/' .. what or what,
        int_text(m.limit), '', '', '', ''))
    end
    m.fresh = nil
  end
end

-- Add to the reserved and used amounts, by resource, of the meters that apply to a queue (nil: all), and write them.
local function update_budgets(budgets, q, reserved, used)
  local record, shared = {}, {}
  for _, budget in ipairs(budgets) do
    local touched = false
    for _, m in ipairs(not (q and budget.queues and not budget.queues[q]) and budget.meters or {}) do
      local r, u = reserved[m.resource] or 0, used[m.resource] or 0
      if r ~= 0 or u ~= 0 then
        local length = not m.resets_at and (r > 0 or u > 0) and window_length(m.window)
        if length then m.resets_at = NOW + length end
        m.reserved, m.used, touched = math.max(m.reserved + r, 0), m.used + u, true
      end
    end
    if touched then
      record_resets(budget.meters, budget.name, budgets.seat)
      local into = OWN_BUDGETS[budget.name] and record or shared
      into[#into + 1], into[#into + 2] = budget.name, format_budget(budget.meters)
    end
  end
  if record[1] then C('HSET', K .. 'seat:' .. budgets.seat, unpack(record)) end
  if shared[1] then C('HSET', K .. 'meters', unpack(shared)) end
end

-- Return the names of the shared budgets that apply to a queue, comma separated, '-' for none. A lease is claimed under these
-- names and settled under them, whatever applies to the seat by then.
local function shared_names(budgets, q)
  local names = {}
  for _, budget in ipairs(budgets) do
    if not OWN_BUDGETS[budget.name] and (not budget.queues or budget.queues[q]) then names[#names + 1] = budget.name end
  end
  return names[1] and table.concat(names, ',') or '-'
end

-- Return the budgets under which a lease was claimed, read once in a script: every change goes to `open_budgets`. A seat that is
-- gone has none of its own.
local lease_budgets = {}
local function budgets_of_lease(seat, names)
  local id = seat .. ' ' .. (names or '')
  if lease_budgets[id] == nil then
    local own, grid = unpack(C('HMGET', K .. 'seat:' .. seat, 'own', 'grid'))
    lease_budgets[id] = budgets_of_seat(seat, own, grid, names and names ~= '-' and string.gsub(names, ',', ' ') or nil) or false
  end
  return lease_budgets[id]
end

-- Parse what a lease reserves, 'money tokens requests gpu-ms names' after seat and slot of its entry in `lease_info`: a table by resource,
-- and the names; nil if no budget applied to its seat. `requests` is 0 for free queues, gpu-ms is left out if it is 0.
local function parse_reserved(info)
  local money, tokens, requests, gpu_ms, names = string.match(info, '^%S+ %S+ (%d+) (%d+) (%d+) ?(%d*) (%S+)$')
  if not names then return nil end
  return {money = tonumber(money), tokens = tonumber(tokens), requests = tonumber(requests), parallel = tonumber(requests),
    gpu_seconds = tonumber(gpu_ms) or 0}, names
end

-- Release what a lease reserves.
local function release_reserved(seat, reserved, names)
  local budgets, less = budgets_of_lease(seat, names), {}
  for resource, n in pairs(reserved) do less[resource] = -n end
  if budgets then update_budgets(budgets, nil, less, {}) end
end

-- Charge what an attempt used. `names`: the budgets under which it was claimed, nil if there were none: then it is no request
-- either.
local function charge_budgets(seat, names, use, requests)
  if use.money == 0 and (not names or use.tokens + use.gpu_seconds + requests == 0) then return end
  local budgets = budgets_of_lease(seat, names)
  if budgets then
    update_budgets(budgets, nil, {}, {money = use.money, tokens = use.tokens, gpu_seconds = use.gpu_seconds, requests = requests})
  end
end

-- Return the meters for `limits`. `before`: meters to keep, by name; `reserved_of`: how much of a resource is reserved now.
local function build_meters(limits, before, reserved_of)
  local meters = {}
  for resource, kind, limit in string.gmatch(limits or '', '([%a_]+)/([^/]+)/(%d+)') do
    local m = before[resource .. '/' .. kind]
      or refresh_meter({resource = resource, window = kind, used = 0, reserved = reserved_of(resource), fresh = true})
    m.limit = tonumber(limit)
    meters[#meters + 1] = m
  end
  return meters
end

-- Return a budget with new limits: a meter of the same resource and window keeps what was used and is reserved. nil without
-- limits. `reserved_of`: how much of a resource is reserved now.
local function apply_limits(account, name, seat, limits, text, reserved_of)
  local before = {}
  for _, m in ipairs(text and (open_budgets[account] or parse_budget(text)) or {}) do before[m.resource .. '/' .. m.window] = m end
  local meters = build_meters(limits, before, reserved_of)
  open_budgets[account] = meters[1] and meters
  record_resets(meters, name, seat)
  return meters[1] and format_budget(meters)
end

-- Return a function resource → what these leases reserve, by their entries in `lease_info`.
local function sum_leases(leases)
  local sum = {}
  for _, info in ipairs(leases) do
    for resource, n in pairs(parse_reserved(info or '') or {}) do sum[resource] = (sum[resource] or 0) + n end
  end
  return function(resource) return sum[resource] or 0 end
end

-- The same of all leases under a shared budget. They are read once in a script.
local leases_by_budget
local function sum_leases_of(name)
  if not leases_by_budget then
    leases_by_budget = {}
    for _, info in ipairs(C('HVALS', K .. 'lease_info')) do
      for one in string.gmatch(string.match(info, ' (%S+)$'), '[^,]+') do
        leases_by_budget[one] = leases_by_budget[one] or {}
        table.insert(leases_by_budget[one], info)
      end
    end
  end
  return sum_leases(leases_by_budget[name] or {})
end

-- The same for an agent or team, whose running jobs reserve money and tokens.
local function sum_jobs(account)
  local field = {money = account, tokens = 'tokens ' .. account, gpu_seconds = 'gpu_seconds ' .. account}
  return function(resource) return field[resource] and tonumber(C('HGET', K .. 'reserved', field[resource]) or 0) or 0 end
end

-- Set one of the two own budgets of a seat.
local function set_budget(seat, name, limits)
  local key = K .. 'seat:' .. seat
  local before = C('HGET', key, name)
  if limits == '' and not before then return end
  local function reserved_of(resource)
    local leases = C('HVALS', K .. 'slots:' .. seat)
    for i, lease in ipairs(leases) do leases[i] = C('HGET', K .. 'lease_info', lease) or '' end
    return sum_leases(leases)(resource)
  end
  local text = apply_limits(name .. ' ' .. seat, name, seat, limits, before, reserved_of)
  if text then C('HSET', key, name, text) else C('HDEL', key, name) end
end

-- Set what the quotas file in force says of a seat (requests a minute, owner, its budget) and which shared budgets apply to it.
-- Its worker reports `owner` and `families` ('<queue>=<family>,<family> …').
local function set_seat_limits(seat)
  local key = K .. 'seat:' .. seat
  local rpm, owner, limits = string.match(C('HGET', K .. 'limits', 's:' .. seat) or '- -', '^(%S+) (%S+) ?(.*)$')
  set_budget(seat, 'grid', limits)
  if rpm == '-' then C('HDEL', key, 'quota_requests_per_minute') else C('HSET', key, 'quota_requests_per_minute', rpm) end
  local own_owner, families = unpack(C('HMGET', key, 'owner', 'families'))
  if owner == '-' then owner = own_owner or '' end
  local shared = {}
  if C('HEXISTS', K .. 'limits', 'm:g') == 1 then shared[1] = 'g' end
  if owner ~= '' and C('HEXISTS', K .. 'limits', 'm:o:' .. owner) == 1 then shared[#shared + 1] = 'o:' .. owner end
  for q, some in string.gmatch(families or '', '(%S+)=(%S+)') do
    local names = {}
    for family in string.gmatch(some, '[^,]+') do
      if C('HEXISTS', K .. 'limits', 'm:f:' .. family) == 1 then names[#names + 1] = 'f:' .. family end
    end
    if names[1] then shared[#shared + 1] = q .. '=' .. table.concat(names, ',') end
  end
  if shared[1] then C('HSET', key, 'shared_budgets', table.concat(shared, ' ')) else C('HDEL', key, 'shared_budgets') end
end
