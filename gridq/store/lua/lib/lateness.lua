-- Why a stage was not done in time, as far as the server knows: nobody took it, or its job's deadline passed.

-- The live seats that serve a queue, of very many some; asked once in a script.
local seats_by_queue = {}
local function read_seats(q)
  if not seats_by_queue[q] then
    local list = {}
    for _, seat in ipairs(C('SRANDMEMBER', K .. 'serving:' .. q, 64)) do
      local f = C('HMGET', K .. 'seat:' .. seat, 'concurrency', 'own', 'grid', 'requests_per_minute', 'quota_requests_per_minute', 'lent_to', 'shared_budgets', 'prices',
        'hourly_price', 'stage_ms')
      local rate = lower_limit(f[4], f[5])
      list[#list + 1] = {seat = seat, concurrency = tonumber(f[1] or 0), busy = C('HLEN', K .. 'slots:' .. seat),
        bill = budgets_of_seat(seat, f[2], f[3], f[7]), hasty = rate ~= nil and is_rate_used_up(seat, rate), only = f[6], prices = f[8],
        hourly = f[9], takes = f[10]}
    end
    seats_by_queue[q] = list
  end
  return seats_by_queue[q]
end

-- A meter in words: whose it is, and what is left of it.
local function describe_meter(m, name, seat)
  local whose = OWN_BUDGETS[name] and seat or name == 'g' and 'the whole grid' or string.sub(name, 1, 1) == 'o' and 'owner ' .. string.sub(name, 3)
    or 'family ' .. string.gsub(string.sub(name, 3), '%%(%x%x)', function(hex) return string.char(tonumber(hex, 16)) end)
  local thing = m.resource == 'parallel' and 'stages' or m.resource
  local function told(n) return m.resource == 'money' and dollars(n) or int_text(n) .. ' ' .. thing end
  local per = m.window == '-' and 'at once' or (window_length(m.window) and 'in ' or 'a ') .. m.window
  return whose .. ' has ' .. told(math.max(m.limit - m.used - m.reserved, 0)) .. ' left of ' .. told(m.limit) .. ' ' .. per
end

-- In words, what would help, and when the window turns of a budget that did not suffice, nil where it has none: whoever reads it is
-- told that in their own time. `x`: the seats that the stage's attempts excluded; `told`: the tokens it will use.
local function explain_wait(q, x, cost, agent, team, told)
  if not is_free(q) and C('HEXISTS', K .. 'parked_agents', agent) == 1 then
    return 'its agent or team was over its limits, so its stages stood aside', 'raise them, or wait until their window turns'
  end
  local able, concurrency, free, solvent, patient, others, empty, turn = 0, 0, 0, 0, 0, 0, nil, nil
  local seats = read_seats(q)
  if not seats[1] then return 'no live seat serves it and takes work', 'start a worker that serves it' end
  for _, s in ipairs(seats) do
    if not is_lent_to(s.only, agent, team) then others = others + 1
    elseif not is_excluded(x, s.seat) then
      able, concurrency = able + 1, concurrency + s.concurrency
      if s.busy < s.concurrency then
        free = free + 1
        local m, name = find_shortage(s.bill, q, tonumber(cost), estimate_use(told, q, s.prices, s.hourly, s.takes))
        if m and not empty then empty, turn = describe_meter(m, name, s.seat), m.resets_at end
        if not m then
          solvent = solvent + 1
          if not s.hasty then patient = patient + 1 end
        end
      end
    end
  end
  if others == #seats then return 'all seats that serve it are lent to others', 'ask the owner of one to lend it to the agent' end
  if able == 0 then return 'the seats that serve it failed it or lack what it needs', 'look at its attempts: gridq job' end
  if free == 0 then return 'all slots of its seats were busy (' .. concurrency .. ')', 'add a seat, or allow a longer queue_timeout' end
  if solvent == 0 then
    return 'the budgets of the seats that serve it do not suffice: ' .. empty, 'raise one, or wait until it turns', turn
  end
  if patient == 0 then return 'its seats had made their requests of the minute', 'add a seat, or allow a longer queue_timeout' end
  return 'a seat that serves it was free and did not look', 'see whether its worker is well: gridq workers'
end

-- The error of a job of which a stage, or the job itself in the inbox (path ''), waited for `ms`.
local function build_queue_timeout(path, q, ms, reason, fix, turn)
  local what = path == '' and 'The job stood in the inbox' or 'A stage stood ready in ' .. q
  return cjson.encode({error = 'QueueTimeout', code = 'job.queue_timeout',
    message = what .. ' for ' .. ms / 1000 .. ' s and nobody took it',
    details = {path = path, queue = q, seconds = ms / 1000, reason = reason, fix = fix, resets_at = turn}})
end

-- The error of a job whose deadline has passed, with the first of its stages that runs or stands ready, of very many some.
local function build_deadline_error(job)
  local f = C('HMGET', job_key(job), 'submitted_at', 'deadline', 'steps', 'agent', 'team')
  if not f[3] then f = C('HMGET', K .. 'submitted:' .. job, 'submitted_at', 'deadline') end
  local details = {path = '', seconds = (f[2] - f[1]) / 1000, reason = not f[3] and 'no router had admitted it' or nil}
  for step = 0, math.min(tonumber(f[3] or 0), 100) - 1 do
    local s = C('HMGET', job_key(job), 'header:' .. step, 'pending:' .. step, 'lease:' .. step, 'excluded:' .. step, 'quarantine:' .. step,
      'tokens:' .. step)
    local h = read_header(nil, nil, s[1])
    local who = s[3] and string.match(C('HGET', K .. 'lease_info', job .. ':' .. step .. ':' .. s[3]) or '', '^%S+')
    if who then
      details.path, details.reason = h.path, 'it was running on ' .. who
      break
    elseif s[5] then
      details.path, details.reason = h.path, 'it stood in quarantine: it had killed the process that ran it, twice'
      details.fix = 'look at quarantined stages while there is time: gridq quarantine'
      break
    elseif s[2] then
      details.path, details.reason, details.fix, details.resets_at = h.path, explain_wait(h.q, s[4] or '', h.cost, f[4], f[5], s[6])
      break
    end
  end
  return cjson.encode({error = 'DeadlineExceeded', code = 'job.deadline',
    message = 'The job was not finished by its deadline', details = details})
end
