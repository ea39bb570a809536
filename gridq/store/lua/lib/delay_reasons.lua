-- Why a stage was not done in time, as far as the server knows: no seat took it, or its job's deadline passed.

-- Return the live seats that serve a queue; of very many some. Read once in a script.
local seats_by_queue = {}
local function read_seats(q)
  if not seats_by_queue[q] then
    local list = {}
    for _, seat in ipairs(C('SRANDMEMBER', K .. 'serving:' .. q, 64)) do
      local concurrency, own, grid, rpm, quota_rpm, lent_to, shared, prices, hourly_price, stage_ms = unpack(C('HMGET',
        K .. 'seat:' .. seat, 'concurrency', 'own', 'grid', 'requests_per_minute', 'quota_requests_per_minute', 'lent_to',
        'shared_budgets', 'prices', 'hourly_price', 'stage_ms'))
      local rate = lower_limit(rpm, quota_rpm)
      list[#list + 1] = {seat = seat, concurrency = tonumber(concurrency or 0), busy = C('HLEN', K .. 'slots:' .. seat),
        budgets = budgets_of_seat(seat, own, grid, shared, prices, hourly_price, stage_ms),
        is_limited = rate ~= nil and is_rate_used_up(seat, rate), lent_to = lent_to}
    end
    seats_by_queue[q] = list
  end
  return seats_by_queue[q]
end

-- Describe a meter: whose it is, and what is left of it.
local function describe_meter(m, name, seat)
  local whose = OWN_BUDGETS[name] and seat or name == 'g' and 'the whole grid'
    or string.sub(name, 1, 1) == 'o' and 'owner ' .. string.sub(name, 3)
    or 'family ' .. unescape(string.sub(name, 3))
  local unit = m.resource == 'parallel' and 'stages' or m.resource
  local function show(n)
    if m.resource == 'gpu_seconds' then return string.format('%.12g', n / 1000) .. ' GPU seconds' end  -- counted in ms
    return m.resource == 'money' and dollars(n) or int_text(n) .. ' ' .. unit
  end
  local per = m.window == '-' and 'at once' or (window_length(m.window) and 'in ' or 'a ') .. m.window
  return whose .. ' has ' .. show(math.max(m.limit - m.used - m.reserved, 0)) .. ' left of ' .. show(m.limit) .. ' ' .. per
end

-- Explain why nobody took a stage. Return the reason, the fix and, if a budget did not suffice, when its window resets (nil if unknown):
-- readers are told that in their own time zone. `excluded`: the seats that the stage excludes; `tokens`: its estimate.
local function explain_wait(q, excluded, cost, agent, team, tokens)
  if not is_free(q) and C('HEXISTS', K .. 'parked_agents', agent) == 1 then
    return 'its agent or team was over its limits, so its stages were parked', 'raise them, or wait until their window resets'
  end
  local able, slots, free, solvent, ready, lent_out, shortage, resets_at = 0, 0, 0, 0, 0, 0, nil, nil
  local seats = read_seats(q)
  if not seats[1] then
    local causes = (read_unavailable() or {})[q]
    if causes then return format_causes(causes), 'submit it again later, or start another worker that serves it; ' .. REPAIR end
    return 'no live seat serves it and takes work', 'start a worker that serves it'
  end
  for _, s in ipairs(seats) do
    if not is_lent_to(s.lent_to, agent, team) then lent_out = lent_out + 1
    elseif not is_excluded(excluded, s.seat) then
      able, slots = able + 1, slots + s.concurrency
      if s.busy < s.concurrency then
        free = free + 1
        local m, name = find_shortage(s.budgets, q, cost, tokens)
        if m and not shortage then shortage, resets_at = describe_meter(m, name, s.seat), m.resets_at end
        if not m then
          solvent = solvent + 1
          if not s.is_limited then ready = ready + 1 end
        end
      end
    end
  end
  if lent_out == #seats then return 'all seats that serve it are lent to others', 'ask the owner of one to lend it to the agent' end
  if able == 0 then return 'the seats that serve it failed it or lack what it needs', 'look at its attempts: gridq job' end
  if free == 0 then return 'all slots of its seats were busy (' .. slots .. ')', 'add a seat, or allow a longer queue_timeout' end
  if solvent == 0 then
    return 'the budgets of the seats that serve it do not suffice: ' .. shortage, 'raise one, or wait until it resets', resets_at
  end
  if ready == 0 then return 'its seats had used up their requests of the minute', 'add a seat, or allow a longer queue_timeout' end
  return 'a seat that serves it was free and did not take it', 'check its worker: gridq workers'
end

-- Build the error of a job of which a stage, or the job itself in the inbox (path ''), waited for `ms`.
local function build_queue_timeout(path, q, ms, reason, fix, resets_at)
  local what = path == '' and 'The job was in the inbox' or 'A stage waited in ' .. unescape(q)
  return cjson.encode({error = 'QueueTimeout', code = 'job.queue_timeout',
    message = what .. ' for ' .. ms / 1000 .. ' s and nobody took it',
    details = {path = path, queue = q, seconds = ms / 1000, reason = reason, fix = fix, resets_at = resets_at}})
end

-- Build the error of a job whose deadline has passed, with its first stage that runs or waits; of very many some are checked.
local function build_deadline_error(job)
  local submitted_at, deadline, steps, agent, team = unpack(C('HMGET', job_key(job), 'submitted_at', 'deadline', 'steps', 'agent', 'team'))
  if not steps then submitted_at, deadline = unpack(C('HMGET', K .. 'submitted:' .. job, 'submitted_at', 'deadline')) end
  local details = {path = '', seconds = (deadline - submitted_at) / 1000, reason = not steps and 'no router had admitted it' or nil}
  for step = 0, math.min(tonumber(steps or 0), 100) - 1 do
    local header, pending, fence, excluded, quarantine, tokens = unpack(C('HMGET', job_key(job), 'header:' .. step, 'pending:' .. step,
      'lease:' .. step, 'excluded:' .. step, 'quarantine:' .. step, 'tokens:' .. step))
    local h = read_header(nil, nil, header)
    local seat = fence and string.match(C('HGET', K .. 'lease_info', job .. ':' .. step .. ':' .. fence) or '', '^%S+')
    if seat then
      details.path, details.reason = h.path, 'it was running on ' .. seat
      break
    elseif quarantine then
      details.path, details.reason = h.path, 'it was in quarantine: it had killed the process that ran it, twice'
      details.fix = 'look at quarantined stages in time: gridq quarantine'
      break
    elseif pending then
      details.path, details.reason, details.fix, details.resets_at = h.path,
        explain_wait(h.q, excluded or '', h.cost, agent, team, tokens)
      break
    end
  end
  return cjson.encode({error = 'DeadlineExceeded', code = 'job.deadline',
    message = 'The job was not finished by its deadline', details = details})
end
