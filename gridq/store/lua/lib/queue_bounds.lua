-- Bounded queues: how many stages may wait in a queue when a job is admitted. Stages of admitted jobs that become ready later are never
-- kept out. A stage that no live seat could take (it is pinned to a seat that is gone, parked, or dearer than what all budgets have left)
-- keeps no place from one that a seat could take, nor the other way round: a queue has two lines, each with the same bound.
--
-- limits: q:<queue> and q:* (for each capability without its own) → 'stages policy'; q: how many of these there are.

local function count_waiting(q)
  local sum = 0
  for _, n in ipairs(C('HVALS', K .. 'classes:' .. q)) do sum = sum + n end
  return sum
end

-- Return whether a live seat could take a stage of this queue, cost and excluded seats if it were not busy. Without an agent only seats
-- that are lent to everybody count. `tokens`: its estimate, if that matters. Computed once in a script.
local taker_cache = {}
local function has_taker(q, cost, excluded, agent, team, tokens)
  local id = table.concat({q, cost, excluded, agent or '', agent and team or '', tokens or ''}, ' ')
  if taker_cache[id] == nil then
    taker_cache[id] = any_seat(q, function(seat)
      return not is_excluded(excluded, seat) and is_seat_lent_to(seat, agent, team) and can_afford(seat, q, cost, tokens)
    end)
  end
  return taker_cache[id]
end

-- Return whether a live seat could take a stage that waits in class `cls` of a queue.
local function stage_has_taker(q, cls, agent, member)
  local cost, excluded = string.match(cls, '^%d+/([^|]*)|(.*)$')
  if excluded ~= '*' and has_taker(q, cost, excluded) then return true end
  return attempt('waiting:' .. q .. ':' .. cls .. ':' .. agent, member, function()
    local job, step = string.match(member, '^([^:]+):(.+)$')
    local own, team = unpack(C('HMGET', job_key(job), 'excluded:' .. step, 'team'))
    return has_taker(q, cost, own or '', agent, team_of(agent, team))
  end) or false
end

-- Return how many stages of each class of a queue belong to parked agents; of very many agents some are asked.
local function count_parked(q)
  local found = {}
  for _, agent in ipairs(C('HRANDFIELD', K .. 'parked_agents', 256)) do
    for _, place in ipairs(C('SMEMBERS', K .. 'parked:' .. agent)) do
      local queue, cls = string.match(place, '^(%S+) (.*)$')
      if queue == q then found[cls] = (found[cls] or 0) + C('ZCARD', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent) end
    end
  end
  return found
end

-- Return how many stages wait in one line of a queue: those that a live seat could take (`served`), or the others. Of very many agents
-- and of mixed classes some stages are looked at; the others count as served.
local function count_line(q, served)
  local classes, parked, sum, total, looks = C('HGETALL', K .. 'classes:' .. q), count_parked(q), 0, 0, 1000
  for i = 1, #classes, 2 do
    local cls, n = classes[i], tonumber(classes[i + 1])
    local cost, excluded = string.match(cls, '^%d+/([^|]*)|(.*)$')
    local without = parked[cls] or 0
    if excluded == '*' or not has_taker(q, cost, excluded) then
      for _, agent in ipairs(C('ZRANGE', K .. 'ready:' .. q .. ':' .. cls, 0, looks)) do
        local waiting = K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent
        local members = looks > 0 and C('ZRANGE', waiting, 0, excluded == '*' and 255 or 0) or {}
        for _, member in ipairs(members) do
          local count = excluded == '*' and 1 or C('ZCARD', waiting)
          if not stage_has_taker(q, cls, agent, member) then without = without + count end
          looks = looks - 1
        end
      end
    end
    sum, total = sum + math.min(without, n), total + n
  end
  return served and total - sum or sum
end

-- Return how many stages may wait in a queue, nil without a limit, and the policy for when it is full.
local function queue_limit(q)
  local own, default = unpack(C('HMGET', K .. 'limits', 'q:' .. q, 'q:*'))
  local most, policy = string.match(own or not is_free(q) and default or '', '^(%d+) (%S+)$')
  return tonumber(most), policy
end

-- Return the sets in which batch stages of one line of a queue wait, as {class, agent}; of very many some. A mixed class has both lines.
local function batch_sets(q, served)
  local found = {}
  for _, cls in ipairs(C('HKEYS', K .. 'classes:' .. q)) do
    if string.sub(cls, 1, 2) ~= '0/' and #found < 128 then
      for _, agent in ipairs(C('ZRANGE', K .. 'ready:' .. q .. ':' .. cls, 0, 127 - #found)) do
        local first = C('ZRANGE', K .. 'waiting:' .. q .. ':' .. cls .. ':' .. agent, 0, 0)[1]
        if string.sub(cls, -2) == '|*' or first and stage_has_taker(q, cls, agent, first) == served then
          found[#found + 1] = {cls, agent}
        end
      end
    end
  end
  for _, agent in ipairs(served and {} or C('HRANDFIELD', K .. 'parked_agents', 32)) do
    for _, place in ipairs(C('SMEMBERS', K .. 'parked:' .. agent)) do
      local queue, cls = string.match(place, '^(%S+) (.*)$')
      if queue == q and string.sub(cls, 1, 2) ~= '0/' then found[#found + 1] = {cls, agent} end
    end
  end
  return found
end

-- Return the batch jobs whose end would make room for `short` stages in a line of a queue, as {job, path of its waiting stage, steps},
-- those that have waited longest first; nil if there are not enough. At most 64 stages, and jobs of 5000 steps in all: nobody else is
-- served meanwhile.
local function find_droppable(q, served, short)
  if short > 64 then return nil end
  local stages, seen, chosen, steps = {}, {}, {}, 0
  for _, set in ipairs(batch_sets(q, served)) do
    -- some more than needed, as a job may be passed over
    local first = C('ZRANGE', K .. 'waiting:' .. q .. ':' .. set[1] .. ':' .. set[2], 0, short + 7, 'WITHSCORES')
    local mixed = string.sub(set[1], -2) == '|*'
    for i = 1, #first, 2 do
      if not mixed or stage_has_taker(q, set[1], set[2], first[i]) == served then
        stages[#stages + 1] = {first[i], tonumber(first[i + 1])}
      end
    end
  end
  table.sort(stages, function(a, b) if a[2] ~= b[2] then return a[2] < b[2] end return a[1] < b[1] end)
  for _, stage in ipairs(stages) do
    local job, step = string.match(stage[1], '^([^:]+):(.+)$')
    if seen[job] == nil then
      seen[job] = attempt('jobs', job, function()
        local n = tonumber(C('HGET', job_key(job), 'steps') or FOREVER)
        if steps + n > 5000 then return false end
        local batch = {job, read_header(job, step).path, {}}
        steps, chosen[#chosen + 1] = steps + n, batch
        return batch
      end) or false
    end
    if seen[job] then
      short = short - 1
      table.insert(seen[job][3], step)
    end
    if short <= 0 then return chosen end
  end
  return nil
end

-- Check whether the ready steps of a job have room in their queues; a step with a chain in the queue where it would wait. `groups`: as
-- admit.lua gets them. Return nil and what must be dropped ({queue, served, limit, needed, {{job, path, steps} …}} …), or {queue, name, waiting stages, limit, needed, '1' if a live seat could take them,
-- else '0'}. Nothing is written.
local function check_room(groups, priority, agent, team)
  if C('HEXISTS', K .. 'limits', 'q') == 0 then return nil, {} end
  local needed, drops = {}, {}
  team = team_of(agent, team)
  local is_parked = C('HEXISTS', K .. 'parked_agents', agent) == 1
  for _, group in ipairs(cjson.decode(groups)) do
    local q, cost, excluded, chain, tokens, members = unpack(group)
    if chain ~= '' then
      local links = parse_chain(chain)
      local link = links[choose_link(links, '', nil, cost, agent, team, tokens)]
      q, excluded = link.q, link.unfit
    end
    if queue_limit(q) then
      local served = (is_free(q) or not is_parked) and has_taker(q, cost, excluded, agent, team)
      local key = q .. (served and ' 1' or ' 0')
      needed[key] = needed[key] or {q = q, served = served, count = 0}
      needed[key].count = needed[key].count + members
    end
  end
  for _, line in pairs(needed) do
    local q, served, count = line.q, line.served, line.count
    local most, policy = queue_limit(q)
    local waiting = count_waiting(q)  -- of both lines: enough to know if there is room for all
    if waiting + count > most then waiting = count_line(q, served) end
    if waiting + count > most then
      local droppable = policy == 'drop-oldest-batch' and priority == '0' and count <= most
        and find_droppable(q, served, waiting + count - most)
      if not droppable then return {'queue', q, int_text(waiting), int_text(most), int_text(count), served and '1' or '0'} end
      drops[#drops + 1] = {q, served, most, count, droppable}
    end
  end
  return nil, drops
end

-- Drop batch jobs until there is room. Return their ids.
local function make_room(drops)
  local dropped = {}
  for _, drop in ipairs(drops) do
    local q, served, most, needed, droppable = unpack(drop)
    for _, batch in ipairs(droppable) do
      if count_line(q, served) + needed <= most then break end
      local job, path = unpack(batch)
      if C('EXISTS', job_key(job)) == 1 then  -- it may have waited in two of the queues
        local record = cjson.encode({error = 'QueueDropped', code = 'queue.dropped',
          message = 'The batch job was dropped for an interactive one: the queue ' .. unescape(q) .. ' was full',
          details = {path = path, queue = q, limit = most, reason = 'its policy is drop-oldest-batch, and this job had waited longest',
            fix = 'submit it again when there is less to do, or raise max_pending of ' .. unescape(q) .. ' in the quotas file'}})
        attempt('jobs', job, function()
          end_job(job, 'failed', record)
          for _, step in ipairs(batch[3]) do stop_remaining(job, step) end
          dropped[#dropped + 1] = job
        end)
      end
    end
  end
  return dropped
end
