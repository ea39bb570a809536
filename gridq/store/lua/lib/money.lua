-- Money and jobs of agents and teams in a month: what they may use, what their running jobs hold, what they have used.
--
-- Who is a:<agent> or t:<team>. limits: who → its limits ('-': none). spent:<start of the month>: 'money <who>', 'jobs <who>'.
-- holds: job → agent, team ('-': none) and what it still holds. promised: who → the sum of its holds.
-- A job that was admitted under limits has the field `team`; of any other nothing here is touched.

local function add_spent(what, who, n)
  local key, _, stop = spent(), window('month')
  local sum = C('HINCRBY', key, what .. ' ' .. who, whole(n))
  if sum == n then C('PEXPIRE', key, whole((stop or NOW + KEEP) - NOW + 2 * 86400000)) end
  return sum
end

local function add_promised(who, n)
  if C('HINCRBY', K .. 'promised', who, whole(n)) <= 0 then C('HDEL', K .. 'promised', who) end
end

-- What binds an agent and its team: {who, kind, name, money, jobs} of each, no limit being nil.
local function binding(agent, team)
  local f = C('HMGET', K .. 'limits', 'a:' .. agent, 'a:*', 't:' .. team)
  local money, jobs = string.match(f[1] or f[2] or '- - -', '^%S+ (%S+) (%S+)$')
  local list = {{who = 'a:' .. agent, kind = 'agent', name = agent, money = tonumber(money), jobs = tonumber(jobs)}}
  if team ~= '-' then
    money, jobs = string.match(f[3] or '- -', '^(%S+) (%S+)$')
    list[2] = {who = 't:' .. team, kind = 'team', name = team, money = tonumber(money), jobs = tonumber(jobs)}
  end
  return list
end

-- Whether an agent, or its team, has used more than it may; a limit of nothing is over at once. Asked once in a script.
local judged = {}
local function over(agent, team)
  local id = agent .. ' ' .. team
  if judged[id] == nil then
    judged[id] = false
    for _, l in ipairs(binding(agent, team)) do
      if l.money and (l.money == 0 or tonumber(C('HGET', spent(), 'money ' .. l.who) or 0) > l.money) then judged[id] = true end
    end
  end
  return judged[id]
end

-- Hold what a job may cost and count it, or neither: every limit is looked at before anything is written. Gives the team it
-- counts for, or nil and {'quota', limit, name, used, held, limit, needed, end of the window or ''}. Who has nothing left
-- starts nothing, even where a job declares no cost.
local function promise(job, agent, team, micro)
  local own = string.match(C('HGET', K .. 'limits', 'a:' .. agent) or '', '^%S+')
  if own and own ~= '-' then team = own end
  local list, _, stop = binding(agent, team), window('month')
  for _, l in ipairs(list) do
    local u = C('HMGET', spent(), 'money ' .. l.who, 'jobs ' .. l.who)
    local used, jobs, held = tonumber(u[1] or 0), tonumber(u[2] or 0), tonumber(C('HGET', K .. 'promised', l.who) or 0)
    local function refusal(what, n, holding, limit, needed)
      return nil, {'quota', l.kind .. what, l.name, whole(n), whole(holding), whole(limit), whole(needed), stop and whole(stop) or ''}
    end
    local needed = math.max(micro, 1)
    if l.money and used + held + needed > l.money then return refusal('_money', used, held, l.money, needed) end
    if l.jobs and jobs >= l.jobs then return refusal('_jobs', jobs, 0, l.jobs, 1) end
  end
  book(words_of('job', job, '', '', '', agent, team, '', '', '', '', '', (window('month'))))
  for _, l in ipairs(list) do
    add_spent('jobs', l.who, 1)
    if micro > 0 then add_promised(l.who, micro) end
  end
  if micro > 0 then C('HSET', K .. 'holds', job, agent .. ' ' .. team .. ' ' .. whole(micro)) end
  return team
end

-- Give back `most` of what a job holds, or all; gives nothing where it holds nothing.
local function unhold(job, most)
  local agent, team, left = string.match(C('HGET', K .. 'holds', job) or '', '^(%S+) (%S+) (%d+)$')
  if not agent then return end
  left = tonumber(left)
  local back = math.min(left, most or left)
  add_promised('a:' .. agent, -back)
  if team ~= '-' then add_promised('t:' .. team, -back) end
  if back == left then C('HDEL', K .. 'holds', job)
  else C('HSET', K .. 'holds', job, agent .. ' ' .. team .. ' ' .. whole(left - back)) end
end

-- What a recorded stage used goes from its job's hold, as far as that lasts, to what agent and team have spent. True where it
-- brought the team over its money: others of it stand in the pending sets too.
local function spend(job, agent, team, micro)
  unhold(job, micro)
  add_spent('money', 'a:' .. agent, micro)
  judged = {}
  if team == '-' then return false end
  local sum = add_spent('money', 't:' .. team, micro)
  local limit = tonumber(string.match(C('HGET', K .. 'limits', 't:' .. team) or '', '^%S+') or '')
  return limit ~= nil and sum > limit and sum - micro <= limit
end

-- The error of a job whose stages, the last at `path`, have used so much more than its submitter allowed: its field `bud` is what
-- they may still use.
local function over_budget(path, micro)
  local why = string.format('its stages used $%.6f more than it may cost', micro / 1000000)
  return '{"error":"JobBudgetExceeded","code":"quota.job_budget","message":"The job has used up its budget","details":'
    .. cjson.encode({path = path, reason = why, fix = 'submit it with a larger budget_cents'}) .. '}'
end

-- What an agent's being over depends on, beside what it has spent: the window and the limits in force.
local marked
local function mark()
  if not marked then marked = window('month') .. ' ' .. (C('HGET', K .. 'limits', 'v') or '') end
  return marked
end

local function costless(q) return string.sub(q, 1, 6) == 'gridq:' end  -- built-in stages and one's own code cost no money

-- Note that an agent has stages in a class which stand aside.
local function aside(q, cls, agent, team)
  C('SADD', K .. 'park:' .. agent, q .. ' ' .. cls)
  C('PEXPIRE', K .. 'park:' .. agent, KEEP)
  C('HSET', K .. 'parked', agent, team .. ' ' .. mark())
end
