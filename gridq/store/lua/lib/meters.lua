-- Meters: how much of a thing may be used in a window, how much has been, and how much what runs now holds of it.
--
-- A sheet is all meters of one bearer, as one text: 'thing/window/limit/used/held/turn' of each, a space between.
-- thing   money (micro-dollars), tokens (in and out), requests (stages that a seat took), jobs, parallel (stages that run now)
-- window  month, week or day of the calendar; '5h' (m, h, d): as long, from its first use on; '-': none, of parallel
-- turn    when the window ends, in ms; '' where one of the second sort has not begun, or no calendar is there yet
-- Bearers: a seat has two sheets in its record, `own` (by its machine) and `grid` (by the quotas file). The hash `meters` has those of
-- the whole grid (g), of owners (o:<owner>), model families (f:<family>), agents (a:<agent>) and teams (t:<team>). Which of them
-- bind a seat says its record's `shared`: names, and '<queue>=<name>,<name>' where they do so in one queue alone.
-- Limits come from `limits`: m:<bearer> → 'thing/window/limit …'. A new window begins with an entry `refill`.

-- How long a window lasts that begins with its first use; nil of any other.
local UNIT_MS = {m = 60000, h = 3600000, d = 86400000}
local function window_length(kind)
  local n, unit = string.match(kind, '^(%d+)([mhd])$')
  return n and n * UNIT_MS[unit]
end

-- The longest that a window of the calendar may last, in ms: the day and the week in which clocks are put back too.
local MAX_WINDOW_MS = {day = 25 * 3600000, week = 169 * 3600000, month = 745 * 3600000}

-- Bring a meter to the present: a window that has turned is empty again. Where the clock was set back its end is found anew.
local function refresh_meter(m)
  local length = window_length(m.window)
  if length and m.resets_at and m.resets_at - NOW > length then m.resets_at = NOW + length
  elseif MAX_WINDOW_MS[m.window] and m.resets_at and m.resets_at - NOW > MAX_WINDOW_MS[m.window] then m.resets_at = nil end
  if m.resets_at and m.resets_at <= NOW then m.used, m.resets_at, m.fresh = 0, nil, true end
  if not (m.resets_at or length or m.window == '-') then
    local _, stop = current_window(m.window)
    m.resets_at = stop
  end
  return m
end

local function parse_budget(text)
  local list = {}
  for thing, kind, limit, used, held, turn in string.gmatch(text, '(%a+)/([^/]+)/(%d+)/(%d+)/(%d+)/(%d*)') do
    list[#list + 1] = refresh_meter({resource = thing, window = kind, limit = tonumber(limit), used = tonumber(used),
      reserved = tonumber(held), resets_at = tonumber(turn)})
  end
  return list
end

-- Sheets that this call has opened: what it changes in one it must find there again.
local open_budgets = {}
local function open_budget(bearer, text)
  open_budgets[bearer] = open_budgets[bearer] or parse_budget(text)
  return open_budgets[bearer]
end

-- All sheets that bind a seat, as far as a queue goes: {seat, {name, list, only} …}; nil where none does. `names`: what its record's
-- `shared` says, or the names that a lease was claimed under.
local function budgets_of_seat(seat, own, grid, names)
  if not (own or grid or names) then return nil end
  local bill = {seat = seat}
  if own then bill[1] = {name = 'own', list = open_budget('own ' .. seat, own)} end
  if grid then bill[#bill + 1] = {name = 'grid', list = open_budget('grid ' .. seat, grid)} end
  local list, only = {}, {}
  for word in words(names) do
    local q, some = string.match(word, '^([^=]+)=(.*)$')
    for name in string.gmatch(some or word, '[^,]+') do
      if only[name] == nil then list[#list + 1] = name end
      only[name] = q and (only[name] or {})
      if q then only[name][q] = true end
    end
  end
  local unread = {}
  for _, name in ipairs(list) do if not open_budgets[name] then unread[#unread + 1] = name end end
  for i, text in ipairs(unread[1] and C('HMGET', K .. 'meters', unpack(unread)) or {}) do
    if text then open_budget(unread[i], text) end
  end
  for _, name in ipairs(list) do
    if open_budgets[name] then bill[#bill + 1] = {name = name, list = open_budgets[name], only = only[name]} end
  end
  return bill
end

-- The first meter in which a stage of a queue has no room, and its sheet's name; nil where all have. `money`: what it is said to
-- cost; `tokens` and `guess`: what it will use and cost by an estimate, of which no more than the limit is asked for, so that what
-- is larger may run yet, but not where the limit is nothing.
local function find_shortage(bill, q, money, tokens, guess)
  local free = is_free(q)
  if free and money == 0 then return nil end  -- what puts answers together goes on where money is overdrawn
  for _, s in ipairs(bill or {}) do
    if not s.only or s.only[q] then
      for _, m in ipairs(s.list) do
        local need = 1
        if m.resource == 'money' then need = math.max(money, math.min(guess or 0, math.max(m.limit, 1)))
        elseif m.resource == 'tokens' then need = math.max(1, math.min(tokens or 0, m.limit)) end
        if not (free and m.resource ~= 'money') and m.used + m.reserved + need > m.limit then return m, s.name end
      end
    end
  end
end

-- For how long a stage of a queue is expected to hold a slot, in ms: as nine of ten of that queue did on the seat lately (`takes`:
-- 'queue=ms …'), else as those of its slowest queue, else its time-out, which is the most it can.
local function expected_ms(takes, q, timeout)
  local slowest
  for name, ms in string.gmatch(takes or '', '(%S+)=(%d+)') do
    if name == q then return math.min(tonumber(ms), timeout) end
    slowest = math.max(slowest or 0, tonumber(ms))
  end
  return math.min(slowest or timeout, timeout)
end

-- What a stage of a queue will use that was told to use 'in out' tokens, with a time-out of its own in ms behind them where it has one
-- (false: nothing is known): how many tokens, and what they and its time cost by the seat's fields prices ('in out'), hourly
-- ('micro-dollars-an-hour time-out') and takes.
local MAX_USED = 1e12  -- as protocol.MOST_USED: sums of more are not exact
local function estimate_use(told, q, prices, hourly, takes)
  local tokens_in, tokens_out, own = string.match(told or '0 0', '^(%d+) (%d+) ?(%d*)$')
  local a, b = string.match(prices or '0 0', '^(%d+) (%d+)$')
  local guess = math.ceil((tokens_in * a + tokens_out * b) / 1000000)
  local hour, timeout = string.match(hourly or '', '^(%d+) (%d+)$')
  if hour and not is_free(q) then
    guess = guess + math.min(math.ceil(hour * expected_ms(takes, q, tonumber(own) or tonumber(timeout)) / 3600000), MAX_USED)
  end
  return tokens_in + tokens_out, guess
end

local function format_budget(list)
  local texts = {}
  for i, m in ipairs(list) do
    texts[i] = m.resource .. '/' .. m.window .. '/' .. int_text(m.limit) .. '/' .. int_text(m.used) .. '/' .. int_text(m.reserved) .. '/'
      .. (m.resets_at and int_text(m.resets_at) or '')
  end
  return table.concat(texts, ' ')
end

local OWN_BUDGETS = {own = true, grid = true}  -- the sheets that a seat shares with nobody

-- Enter which windows have begun anew; what is used in them is entered after it.
local function record_resets(list, name, seat)
  local alone = OWN_BUDGETS[name]
  for _, m in ipairs(list) do
    if m.fresh and m.window ~= '-' then
      local what = m.resource .. '/' .. m.window
      append_ledger(ledger_entry('refill', '', '', '', alone and seat or '', alone and '' or name, '', alone and name .. '/' .. what or what,
        int_text(m.limit), '', '', '', ''))
    end
    m.fresh = nil
  end
end

-- Add to what the meters that bind in a queue (nil: all) hold and have used, by things, and write them.
local function update_budgets(bill, q, held, used)
  local record, shared = {}, {}
  for _, s in ipairs(bill) do
    local touched = false
    for _, m in ipairs(not (q and s.only and not s.only[q]) and s.list or {}) do
      local h, u = held[m.resource] or 0, used[m.resource] or 0
      if h ~= 0 or u ~= 0 then
        local length = not m.resets_at and (h > 0 or u > 0) and window_length(m.window)
        if length then m.resets_at = NOW + length end
        m.reserved, m.used, touched = math.max(m.reserved + h, 0), m.used + u, true
      end
    end
    if touched then
      record_resets(s.list, s.name, bill.seat)
      local into = OWN_BUDGETS[s.name] and record or shared
      into[#into + 1], into[#into + 2] = s.name, format_budget(s.list)
    end
  end
  if record[1] then C('HSET', K .. 'seat:' .. bill.seat, unpack(record)) end
  if shared[1] then C('HSET', K .. 'meters', unpack(shared)) end
end

-- The names of the shared sheets that bind in a queue, with commas between, '-' where there are none: under these a lease is
-- claimed, and settled whatever binds the seat by then.
local function shared_names(bill, q)
  local names = {}
  for _, s in ipairs(bill) do
    if not OWN_BUDGETS[s.name] and (not s.only or s.only[q]) then names[#names + 1] = s.name end
  end
  return names[1] and table.concat(names, ',') or '-'
end

-- The sheets under which a lease was claimed: asked once in a script, for all that changes one does so in what is `opened`. The record
-- of a seat that is gone has none of its own.
local lease_budgets = {}
local function budgets_of_lease(seat, names)
  local id = seat .. ' ' .. (names or '')
  if lease_budgets[id] == nil then
    local f = C('HMGET', K .. 'seat:' .. seat, 'own', 'grid')
    lease_budgets[id] = budgets_of_seat(seat, f[1], f[2], names and names ~= '-' and string.gsub(names, ',', ' ') or nil) or false
  end
  return lease_budgets[id]
end

-- Give back what a lease held: 'money tokens requests names' of its words in `who`; requests 0 where it costs nothing.
local function release_reserved(seat, money, tokens, requests, names)
  local bill = budgets_of_lease(seat, names)
  if bill then update_budgets(bill, nil, {money = -money, tokens = -tokens, requests = -requests, parallel = -requests}, {}) end
end

-- Charge what an attempt used. `names`: under which it was claimed, nil where nothing bound its seat then: it is no request either.
local function charge_budgets(seat, names, micro, tokens, requests)
  if micro == 0 and (not names or tokens + requests == 0) then return end
  local bill = budgets_of_lease(seat, names)
  if bill then update_budgets(bill, nil, {}, {money = micro, tokens = tokens, requests = requests}) end
end

-- The meters that limits make. `before`: by their names those that go on; `holding`: what is held of a thing now.
local function build_meters(limits, before, holding)
  local list = {}
  for thing, kind, limit in string.gmatch(limits or '', '(%a+)/([^/]+)/(%d+)') do
    local m = before[thing .. '/' .. kind] or refresh_meter({resource = thing, window = kind, used = 0, reserved = holding(thing), fresh = true})
    m.limit = tonumber(limit)
    list[#list + 1] = m
  end
  return list
end

-- A bearer's sheet by new limits: what is used and held outlives them, as far as there is a meter of the same thing and window.
-- `holding`: what is held of a thing now. nil where there are no limits.
local function apply_limits(bearer, name, seat, limits, text, holding)
  local before = {}
  for _, m in ipairs(text and (open_budgets[bearer] or parse_budget(text)) or {}) do before[m.resource .. '/' .. m.window] = m end
  local list = build_meters(limits, before, holding)
  open_budgets[bearer] = list[1] and list
  record_resets(list, name, seat)
  return list[1] and format_budget(list)
end

-- What open leases hold, as a function of the thing. `leases`: of them the words in `who`; `name`: under this shared sheet alone.
local function sum_leases(leases, name)
  local sum = {money = 0, tokens = 0, requests = 0, parallel = 0}
  for _, words_of_it in ipairs(leases) do
    local money, tokens, requests, names = string.match(words_of_it or '', '^%S+ %S+ (%d+) ?(%d*) ?(%d*) ?(%S*)$')
    if requests and requests ~= '' and (not name or string.find(',' .. names .. ',', ',' .. name .. ',', 1, true)) then
      sum.money, sum.tokens = sum.money + money, sum.tokens + tokens
      sum.requests, sum.parallel = sum.requests + requests, sum.parallel + requests
    end
  end
  return function(thing) return sum[thing] or 0 end
end

-- The same of an agent or team, whose running jobs hold money.
local function sum_jobs(who)
  local field = {money = who, tokens = 'tokens ' .. who}
  return function(thing) return field[thing] and tonumber(C('HGET', K .. 'reserved', field[thing]) or 0) or 0 end
end

-- Set one of a seat's own two sheets.
local function set_budget(seat, name, limits)
  local key = K .. 'seat:' .. seat
  local before = C('HGET', key, name)
  if limits == '' and not before then return end
  local function holding(thing)
    local leases, held = {}, C('HVALS', K .. 'slots:' .. seat)
    for i, lease in ipairs(held) do leases[i] = C('HGET', K .. 'lease_info', lease) or '' end
    return sum_leases(leases)(thing)
  end
  local text = apply_limits(name .. ' ' .. seat, name, seat, limits, before, holding)
  if text then C('HSET', key, name, text) else C('HDEL', key, name) end
end

-- What the quotas file in force says of a seat: requests a minute, its owner, the limits of its sheet; and which shared sheets
-- bind it. `owner` and `families` ('<queue>=<family>,<family> …') its worker has told.
local function set_seat_limits(seat)
  local key = K .. 'seat:' .. seat
  local rpm, owner, limits = string.match(C('HGET', K .. 'limits', 's:' .. seat) or '- -', '^(%S+) (%S+) ?(.*)$')
  set_budget(seat, 'grid', limits)
  if rpm == '-' then C('HDEL', key, 'quota_requests_per_minute') else C('HSET', key, 'quota_requests_per_minute', rpm) end
  local f = C('HMGET', key, 'owner', 'families')
  if owner == '-' then owner = f[1] or '' end
  local shared = {}
  if C('HEXISTS', K .. 'limits', 'm:g') == 1 then shared[1] = 'g' end
  if owner ~= '' and C('HEXISTS', K .. 'limits', 'm:o:' .. owner) == 1 then shared[#shared + 1] = 'o:' .. owner end
  for q, some in string.gmatch(f[2] or '', '(%S+)=(%S+)') do
    local names = {}
    for family in string.gmatch(some, '[^,]+') do
      if C('HEXISTS', K .. 'limits', 'm:f:' .. family) == 1 then names[#names + 1] = 'f:' .. family end
    end
    if names[1] then shared[#shared + 1] = q .. '=' .. table.concat(names, ',') end
  end
  if shared[1] then C('HSET', key, 'shared_budgets', table.concat(shared, ' ')) else C('HDEL', key, 'shared_budgets') end
end

-- The shared sheets, as the limits in force have them. Those of agents that have no table of their own come with their first job.
local function set_shared_budgets()
  local limits, there, who = C('HGETALL', K .. 'limits'), C('HGETALL', K .. 'meters'), nil
  local wanted, before, default = {}, {}, nil
  for i = 1, #limits, 2 do
    local name = string.match(limits[i], '^m:(.*)$')
    if name == 'a:*' then default = limits[i + 1] elseif name then wanted[name] = limits[i + 1] end
  end
  for i = 1, #there, 2 do
    before[there[i]] = there[i + 1]
    if string.sub(there[i], 1, 2) == 'a:' and not wanted[there[i]] and C('HEXISTS', K .. 'limits', there[i]) == 0 then
      wanted[there[i]] = default
    end
    if not wanted[there[i]] then C('HDEL', K .. 'meters', there[i]) end
  end
  for name, text in pairs(wanted) do
    local function holding(thing)
      if string.find(name, '^[at]:') then return sum_jobs(name)(thing) end
      who = who or C('HVALS', K .. 'lease_info')
      return sum_leases(who, name)(thing)
    end
    C('HSET', K .. 'meters', name, apply_limits(name, name, '', text, before[name], holding))
  end
end
