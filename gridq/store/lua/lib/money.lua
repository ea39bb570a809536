-- Money and jobs of agents and teams: what they may use, what their running jobs hold, what they have used. What they have used in a
-- month is kept of all of them, once there are limits at all; meters of other windows and of tokens of those alone who have such limits.
--
-- Who is a:<agent> or t:<team>. limits: who → its limits ('-': none). spent:<start of the month>: 'money <who>', 'jobs <who>'.
-- holds: job → agent, team ('-': none), the money and, where a meter counts them, the tokens that it still holds. promised: who and
-- 'tokens <who>' → the sums of these.
-- A job that was admitted under limits has the field `team`; of any other nothing here is touched.

local function add_spent(what, who, n)
  local key, _, stop = spent_key(), current_window('month')
  local sum = C('HINCRBY', key, what .. ' ' .. who, int_text(n))
  if sum == n then C('PEXPIRE', key, int_text((stop or NOW + KEEP) - NOW + 2 * 86400000)) end
  return sum
end

local function add_reserved(who, n)
  if C('HINCRBY', K .. 'reserved', who, int_text(n)) <= 0 then C('HDEL', K .. 'reserved', who) end
end

-- The meters of an agent or team with such `limits`, false: none. Its sheet is drawn when it is asked for first, and written but
-- where one only looks.
local function read_meters(who, limits, looks)
  if not limits then return {} end
  local text = C('HGET', K .. 'meters', who)
  if not text then
    if looks then return build_meters(limits, {}, sum_jobs(who)) end
    text = apply_limits(who, who, '', limits, nil, sum_jobs(who))
    C('HSET', K .. 'meters', who, text)
  end
  return open_budget(who, text)
end

-- What binds an agent and its team: {who, kind, name, money, jobs, meters} of each, no limit of the month being nil. `looks`: nothing
-- is to be written.
local function read_account_limits(agent, team, looks)
  local f = C('HMGET', K .. 'limits', 'a:' .. agent, 'a:*', 't:' .. team, 'm:a:' .. agent, 'm:a:*', 'm:t:' .. team)
  local money, jobs = string.match(f[1] or f[2] or '- - -', '^%S+ (%S+) (%S+)$')
  local own = 'a:' .. agent
  local list = {{who = own, kind = 'agent', name = agent, money = tonumber(money), jobs = tonumber(jobs),
    meters = read_meters(own, f[4] or not f[1] and f[5], looks)}}
  if team ~= '-' then
    money, jobs = string.match(f[3] or '- -', '^(%S+) (%S+)$')
    own = 't:' .. team
    list[2] = {who = own, kind = 'team', name = team, money = tonumber(money), jobs = tonumber(jobs), meters = read_meters(own, f[6], looks)}
  end
  return list
end

-- Add to what the meters of an agent and its team hold and have used. To be called before what it stands for is entered.
local function update_accounts(list, held, used)
  local bill = {seat = ''}
  for i, l in ipairs(list) do bill[i] = {name = l.who, list = l.meters} end
  update_budgets(bill, nil, held, used)
end

-- Whether an agent, or its team, has used more money or tokens than it may; a limit of nothing is over at once. Asked once in a script.
local over_limit_cache = {}
local function is_over_limit(agent, team)
  local id = agent .. ' ' .. team
  if over_limit_cache[id] == nil then
    over_limit_cache[id] = false
    for _, l in ipairs(read_account_limits(agent, team)) do
      if l.money and (l.money == 0 or tonumber(C('HGET', spent_key(), 'money ' .. l.who) or 0) > l.money) then over_limit_cache[id] = true end
      for _, m in ipairs(l.meters) do
        if m.resource ~= 'jobs' and (m.limit == 0 or m.used > m.limit) then over_limit_cache[id] = true end
      end
    end
  end
  return over_limit_cache[id]
end

local function format_reservation(agent, team, micro, tokens)
  return agent .. ' ' .. team .. ' ' .. int_text(micro) .. (tokens > 0 and ' ' .. int_text(tokens) or '')
end

-- The tokens that a job is estimated to use, where a meter of `list` counts them. `from`: where in ARGV the fields of its plan begin.
local function sum_expected_tokens(list, from)
  local counts, sum = false, 0
  for _, l in ipairs(list) do
    for _, m in ipairs(l.meters) do counts = counts or m.resource == 'tokens' end
  end
  for i = from, counts and #ARGV or 0, 2 do
    if string.sub(ARGV[i], 1, 7) == 'tokens:' then
      local a, b = string.match(ARGV[i + 1], '^(%d+) (%d+)')
      sum = sum + a + b
    end
  end
  return sum
end

-- Which limit of those in `list` a job of so much money and so many tokens would go over: {'quota', limit, name, used, held, limit,
-- needed, end of the window or '', the window}; nil where none. Who has nothing left starts nothing, even where a job declares no cost.
local function find_quota(list, micro, tokens)
  local _, stop = current_window('month')
  for _, l in ipairs(list) do
    local u = C('HMGET', spent_key(), 'money ' .. l.who, 'jobs ' .. l.who)
    local used, jobs, held = tonumber(u[1] or 0), tonumber(u[2] or 0), tonumber(C('HGET', K .. 'reserved', l.who) or 0)
    local function refusal(what, n, holding, limit, needed, kind, turn)
      turn = kind and turn or not kind and stop
      return {'quota', l.kind .. '_' .. what, l.name, int_text(n), int_text(holding), int_text(limit), int_text(needed), turn and int_text(turn) or '',
        kind or 'month'}
    end
    local needed = math.max(micro, 1)
    if l.money and used + held + needed > l.money then return refusal('money', used, held, l.money, needed) end
    if l.jobs and jobs >= l.jobs then return refusal('jobs', jobs, 0, l.jobs, 1) end
    for _, m in ipairs(l.meters) do
      local n = m.resource == 'money' and needed or m.resource == 'tokens' and math.max(math.min(tokens, m.limit), 1) or 1
      if m.used + m.reserved + n > m.limit then return refusal(m.resource, m.used, m.reserved, m.limit, n, m.window, m.resets_at) end
    end
  end
end

-- Hold what a job may cost and count it, or neither: every limit is looked at before anything is written. Gives the team it
-- counts for, or nil and the refusal.
local function reserve(job, agent, team, micro, from)
  team = team_of(agent, team)
  local list = read_account_limits(agent, team)
  local tokens = sum_expected_tokens(list, from)
  local refusal = find_quota(list, micro, tokens)
  if refusal then return nil, refusal end
  update_accounts(list, {money = micro, tokens = tokens}, {jobs = 1})
  append_ledger(ledger_entry('job', job, '', '', '', agent, team, '', '', '', '', '', (current_window('month'))))
  for _, l in ipairs(list) do
    add_spent('jobs', l.who, 1)
    if micro > 0 then add_reserved(l.who, micro) end
    if tokens > 0 then add_reserved('tokens ' .. l.who, tokens) end
  end
  if micro + tokens > 0 then C('HSET', K .. 'reservations', job, format_reservation(agent, team, micro, tokens)) end
  return team
end

-- Give back so much of what a job holds, or all; gives nothing where it holds nothing.
local function release_reservation(job, micro, tokens)
  local agent, team, money, expects = string.match(C('HGET', K .. 'reservations', job) or '', '^(%S+) (%S+) (%d+) ?(%d*)$')
  if not agent then return end
  money, expects = tonumber(money), tonumber(expects) or 0
  micro, tokens = math.min(money, micro or money), math.min(expects, tokens or expects)
  if micro + tokens == 0 then return end
  local list = read_account_limits(agent, team)
  update_accounts(list, {money = -micro, tokens = -tokens}, {})
  for _, l in ipairs(list) do
    if micro > 0 then add_reserved(l.who, -micro) end
    if tokens > 0 then add_reserved('tokens ' .. l.who, -tokens) end
  end
  if micro + tokens == money + expects then C('HDEL', K .. 'reservations', job)
  else C('HSET', K .. 'reservations', job, format_reservation(agent, team, money - micro, expects - tokens)) end
end

-- What a recorded stage used is counted by the meters of agent and team: before it is entered.
local function count_use(agent, team, micro, tokens) update_accounts(read_account_limits(agent, team), {}, {money = micro, tokens = tokens}) end

-- What a recorded stage used goes from its job's hold, as far as that lasts, to what agent and team have spent. True where it
-- brought the team over what it may use: others of it stand in the pending sets too.
local function spend_reserved(job, agent, team, micro, tokens)
  release_reservation(job, micro, tokens)
  if micro > 0 then add_spent('money', 'a:' .. agent, micro) end
  over_limit_cache = {}
  if team == '-' then return false end
  local l = read_account_limits(agent, team)[2]
  local sum = micro > 0 and add_spent('money', 't:' .. team, micro) or 0
  local crossed = l.money ~= nil and sum > l.money and sum - micro <= l.money
  for _, m in ipairs(l.meters) do
    local n = m.resource == 'money' and micro or m.resource == 'tokens' and tokens or 0
    crossed = crossed or m.used > m.limit and m.used - n <= m.limit
  end
  return crossed
end

-- The error of a job whose stages, the last at `path`, have used so much more than its submitter allowed: its field `bud` is what
-- they may still use.
local function build_budget_error(path, micro)
  local why = 'its stages used ' .. dollars(micro) .. ' more than it may cost'
  return '{"error":"JobBudgetExceeded","code":"quota.job_budget","message":"The job has used up its budget","details":'
    .. cjson.encode({path = path, reason = why, fix = 'submit it with a larger budget_cents'}) .. '}'
end

-- What an agent's being over depends on, beside what it has used: the windows and the limits in force. With a week a day turns too.
local mark_cache
local function limits_mark()
  if not mark_cache then
    local month, day = current_window('month'), current_window('day')
    mark_cache = month .. ' ' .. day .. ' ' .. (C('HGET', K .. 'limits', 'digest') or '')
  end
  return mark_cache
end

-- Note that an agent has stages in a class which stand aside.
local function park_class(q, cls, agent, team)
  C('SADD', K .. 'parked:' .. agent, q .. ' ' .. cls)
  C('PEXPIRE', K .. 'parked:' .. agent, KEEP)
  C('HSET', K .. 'parked_agents', agent, team .. ' ' .. limits_mark())
end
