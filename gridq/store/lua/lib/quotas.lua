-- Money and jobs of agents and teams: what they may use, what their running jobs reserve, what they have used.
--
-- An account is a:<agent> or t:<team>. limits: account → its limits ('-' for none). spent:<start of the month>: 'money <account>' and
-- 'jobs <account>', kept for all accounts while there are limits at all. reservations: job → agent, team ('-' for none), the money and,
-- if a meter counts them, the tokens and GPU ms that it still reserves. reserved: account, 'tokens <account>' and
-- 'gpu_seconds <account>' → their sums. Meters of other windows, of tokens and of GPU seconds exist only for accounts with such limits.
-- A job that was admitted under limits has the field `charged_team`; nothing here concerns other jobs.

local function add_spent(what, account, n)
  local key, _, stop = spent_key(), current_window('month')
  local sum = C('HINCRBY', key, what .. ' ' .. account, int_text(n))
  if sum == n then C('PEXPIRE', key, int_text((stop or NOW + KEEP) - NOW + 2 * 86400000)) end
  return sum
end

local function add_reserved(account, n)
  if C('HINCRBY', K .. 'reserved', account, int_text(n)) <= 0 then C('HDEL', K .. 'reserved', account) end
end

-- Return the meters of an account with these limits (false: none). Its budget is built when it is asked for first, and stored unless
-- `read_only`.
local function read_meters(account, limits, read_only)
  if not limits then return {} end
  if open_budgets[account] then return open_budgets[account] end
  local text = C('HGET', K .. 'meters', account)
  if not text then
    if read_only then return build_meters(limits, {}, sum_jobs(account)) end
    text = apply_limits(account, account, '', limits, nil, sum_jobs(account))
    C('HSET', K .. 'meters', account, text)
  end
  return open_budget(account, text)
end

-- Return the limits of an agent and its team: {account, kind, name, money, jobs, meters} of each; money and jobs of the month are nil
-- without a limit. `read_only`: nothing is to be written.
local function read_account_limits(agent, team, read_only)
  local own, default, of_team, own_meters, default_meters, team_meters = unpack(C('HMGET', K .. 'limits',
    'a:' .. agent, 'a:*', 't:' .. team, 'm:a:' .. agent, 'm:a:*', 'm:t:' .. team))
  local money, jobs = string.match(own or default or '- - -', '^%S+ (%S+) (%S+)$')
  local account = 'a:' .. agent
  local list = {{account = account, kind = 'agent', name = agent, money = tonumber(money), jobs = tonumber(jobs),
    meters = read_meters(account, own_meters or not own and default_meters, read_only)}}
  if team ~= '-' then
    money, jobs = string.match(of_team or '- -', '^(%S+) (%S+)$')
    account = 't:' .. team
    list[2] = {account = account, kind = 'team', name = team, money = tonumber(money), jobs = tonumber(jobs),
      meters = read_meters(account, team_meters, read_only)}
  end
  return list
end

-- Add to the reserved and used amounts of an agent's and its team's meters. To be called before the ledger entry.
local function update_accounts(accounts, reserved, used)
  local budgets = {seat = ''}
  for i, one in ipairs(accounts) do budgets[i] = {name = one.account, meters = one.meters} end
  update_budgets(budgets, nil, reserved, used)
end

-- Return whether an agent or its team has used more money, tokens or GPU seconds than it may; a limit of 0 is exceeded at once. Computed
-- once in a script.
local over_limit_cache = {}
local function is_over_limit(agent, team)
  local id = agent .. ' ' .. team
  if over_limit_cache[id] == nil then
    over_limit_cache[id] = false
    for _, one in ipairs(read_account_limits(agent, team)) do
      if one.money and (one.money == 0 or tonumber(C('HGET', spent_key(), 'money ' .. one.account) or 0) > one.money) then
        over_limit_cache[id] = true
      end
      for _, m in ipairs(one.meters) do
        if m.resource ~= 'jobs' and (m.limit == 0 or m.used > m.limit) then over_limit_cache[id] = true end
      end
    end
  end
  return over_limit_cache[id]
end

-- Write what a job reserves, `use`, which has changed by `change`, and add that to the sums of its agent and team.
local function set_reservation(job, agent, team, accounts, use, change)
  for _, one in ipairs(accounts) do
    for resource, n in pairs(change) do
      if n ~= 0 then add_reserved(resource == 'money' and one.account or resource .. ' ' .. one.account, n) end
    end
  end
  if use.money + use.tokens + use.gpu_seconds == 0 then return C('HDEL', K .. 'reservations', job) end
  local text = agent .. ' ' .. team .. ' ' .. int_text(use.money)
  if use.tokens + use.gpu_seconds > 0 then text = text .. ' ' .. int_text(use.tokens) end
  if use.gpu_seconds > 0 then text = text .. ' ' .. int_text(use.gpu_seconds) end
  C('HSET', K .. 'reservations', job, text)
end

-- Return whether a meter of these accounts counts a resource.
local function counts_resource(accounts, resource)
  for _, one in ipairs(accounts) do
    for _, m in ipairs(one.meters) do if m.resource == resource then return true end end
  end
  return false
end

-- Return the limit that a job of this expected `use` would exceed: {quota, limit, name, used, reserved, limit, needed, end of the window or
-- '', window}; nil for none. An agent with nothing left starts nothing, even if the job declares no cost.
local function find_quota(accounts, use)
  local _, stop = current_window('month')
  for _, one in ipairs(accounts) do
    local spent_money, spent_jobs = unpack(C('HMGET', spent_key(), 'money ' .. one.account, 'jobs ' .. one.account))
    local used, jobs = tonumber(spent_money or 0), tonumber(spent_jobs or 0)
    local reserved = tonumber(C('HGET', K .. 'reserved', one.account) or 0)
    local function refuse(what, n, held, limit, needed, window, resets_at)
      resets_at = window and resets_at or not window and stop
      return {'quota', one.kind .. '_' .. what, one.name, int_text(n), int_text(held), int_text(limit), int_text(needed),
        resets_at and int_text(resets_at) or '', window or 'month'}
    end
    local needed = math.max(use.money, 1)
    if one.money and used + reserved + needed > one.money then return refuse('money', used, reserved, one.money, needed) end
    if one.jobs and jobs >= one.jobs then return refuse('jobs', jobs, 0, one.jobs, 1) end
    for _, m in ipairs(one.meters) do
      local n = m.resource == 'money' and needed or math.max(math.min(use[m.resource] or 1, m.limit), 1)
      if m.used + m.reserved + n > m.limit then return refuse(m.resource, m.used, m.reserved, m.limit, n, m.window, m.resets_at) end
    end
  end
end

-- Reserve what a job may cost and count the job, or neither: every limit is checked before anything is written. Return the team that it
-- counts for, or nil and the refusal.
local function reserve(job, agent, team, use)
  team = team_of(agent, team)
  local accounts = read_account_limits(agent, team)
  for _, resource in ipairs({'tokens', 'gpu_seconds'}) do
    if not counts_resource(accounts, resource) then use[resource] = 0 end
  end
  local refusal = find_quota(accounts, use)
  if refusal then return nil, refusal end
  update_accounts(accounts, use, {jobs = 1})
  append_ledger(ledger_entry('job', job, '', '', '', agent, team, '', '', '', '', '', (current_window('month'))))
  for _, one in ipairs(accounts) do add_spent('jobs', one.account, 1) end
  if use.money + use.tokens + use.gpu_seconds > 0 then set_reservation(job, agent, team, accounts, use, use) end
  return team
end

-- Release so much of a job's reservation, or all of it.
local function release_reservation(job, use)
  local agent, team, money, tokens, gpu_ms =
    string.match(C('HGET', K .. 'reservations', job) or '', '^(%S+) (%S+) (%d+) ?(%d*) ?(%d*)$')
  if not agent then return end
  local left = {money = tonumber(money), tokens = tonumber(tokens) or 0, gpu_seconds = tonumber(gpu_ms) or 0}
  local less, sum = {}, 0
  for resource, n in pairs(left) do
    less[resource] = -(use and math.min(n, use[resource]) or n)
    sum = sum + less[resource]
  end
  if sum == 0 then return end
  for resource, n in pairs(less) do left[resource] = left[resource] + n end
  local accounts = read_account_limits(agent, team)
  update_accounts(accounts, less, {})
  set_reservation(job, agent, team, accounts, left, less)
end

-- Count what a recorded stage used in the meters of agent and team. To be called before its ledger entry.
local function count_use(agent, team, use)
  update_accounts(read_account_limits(agent, team), {}, use)
end

-- Move what a recorded stage used from its job's reservation, as far as that goes, to what agent and team have spent. Return whether this
-- brought the team over its limit: other agents of the team must be parked too.
local function spend_reserved(job, agent, team, use)
  local micro = use.money
  release_reservation(job, use)
  if micro > 0 then add_spent('money', 'a:' .. agent, micro) end
  over_limit_cache = {}
  if team == '-' then return false end
  local of_team = read_account_limits(agent, team)[2]
  local sum = micro > 0 and add_spent('money', 't:' .. team, micro) or 0
  local crossed = of_team.money ~= nil and sum > of_team.money and sum - micro <= of_team.money
  for _, m in ipairs(of_team.meters) do
    local n = use[m.resource] or 0
    crossed = crossed or m.used > m.limit and m.used - n <= m.limit
  end
  return crossed
end

-- Build the error of a job whose stages, the last at `path`, have used `micro` more than its submitter allowed (field `budget`).
local function build_budget_error(path, micro)
  local why = 'its stages used ' .. dollars(micro) .. ' more than it may cost'
  return '{"error":"JobBudgetExceeded","code":"quota.job_budget","message":"The job has used up its budget","details":'
    .. cjson.encode({path = path, reason = why, fix = 'submit it with a larger budget_cents'}) .. '}'
end

-- Return what decides, beside use, whether an agent is over its limits: the windows and the limits in force. A new week is a new day too.
local mark_cache
local function limits_mark()
  if not mark_cache then
    local month, day = current_window('month'), current_window('day')
    mark_cache = month .. ' ' .. day .. ' ' .. (C('HGET', K .. 'limits', 'digest') or '')
  end
  return mark_cache
end

-- Note that an agent has parked stages in a class.
local function park_class(q, cls, agent, team)
  C('SADD', K .. 'parked:' .. agent, q .. ' ' .. cls)
  C('PEXPIRE', K .. 'parked:' .. agent, KEEP)
  C('HSET', K .. 'parked_agents', agent, team)
end
