-- Bounded queues: how many stages may wait in a queue when a job is admitted. Stages of admitted jobs that become ready later are never
-- kept out.
--
-- limits: q:<queue> and q:* (for each capability without its own) → 'stages policy'; q: how many of these there are.

local function count_waiting(q)
  local sum = 0
  for _, n in ipairs(C('HVALS', K .. 'classes:' .. q)) do sum = sum + n end
  return sum
end

-- Return how many stages may wait in a queue, nil without a limit, and the policy for when it is full.
local function queue_limit(q)
  local own, default = unpack(C('HMGET', K .. 'limits', 'q:' .. q, 'q:*'))
  local most, policy = string.match(own or not is_free(q) and default or '', '^(%d+) (%S+)$')
  return tonumber(most), policy
end

-- Return the sets in which batch stages of a queue wait, as {class, agent}; of very many some. They include parked agents.
local function batch_sets(q)
  local found = {}
  for _, cls in ipairs(C('HKEYS', K .. 'classes:' .. q)) do
    if string.sub(cls, 1, 2) ~= '0/' and #found < 128 then
      for _, agent in ipairs(C('ZRANGE', K .. 'ready:' .. q .. ':' .. cls, 0, 127 - #found)) do found[#found + 1] = {cls, agent} end
    end
  end
  for _, agent in ipairs(C('HRANDFIELD', K .. 'parked_agents', 32)) do
    for _, place in ipairs(C('SMEMBERS', K .. 'parked:' .. agent)) do
      local queue, cls = string.match(place, '^(%S+) (.*)$')
      if queue == q and string.sub(cls, 1, 2) ~= '0/' then found[#found + 1] = {cls, agent} end
    end
  end
  return found
end

-- Return the batch jobs whose end would make room for `short` stages of a queue, as {job, path of its waiting stage}, those that have
-- waited longest first; nil if there are not enough. At most 64 stages, and jobs of 5000 steps in all: nobody else is served meanwhile.
local function find_droppable(q, short)
  if short > 64 then return nil end
  local stages, seen, chosen, steps = {}, {}, {}, 0
  for _, set in ipairs(batch_sets(q)) do
    -- some more than needed, as a job may be passed over
    local first = C('ZRANGE', K .. 'waiting:' .. q .. ':' .. set[1] .. ':' .. set[2], 0, short + 7, 'WITHSCORES')
    for i = 1, #first, 2 do stages[#stages + 1] = {first[i], tonumber(first[i + 1])} end
  end
  table.sort(stages, function(a, b) if a[2] ~= b[2] then return a[2] < b[2] end return a[1] < b[1] end)
  for _, stage in ipairs(stages) do
    local job, step = string.match(stage[1], '^([^:]+):(.+)$')
    if seen[job] == nil then
      local n = tonumber(C('HGET', job_key(job), 'steps') or FOREVER)
      seen[job] = steps + n <= 5000
      if seen[job] then
        steps = steps + n
        chosen[#chosen + 1] = {job, read_header(job, step).path}
      end
    end
    if seen[job] then short = short - 1 end
    if short <= 0 then return chosen end
  end
  return nil
end

-- Check whether the ready steps of a job have room in their queues; a step with a chain in the queue where it would wait. `ready`: the
-- steps; `from`: where the fields of its plan begin in ARGV. Return nil and what must be dropped ({queue, limit, needed, {{job, path} …}}
-- …), or {queue, name, waiting stages, limit, needed}. Nothing is written.
local function check_room(ready, from, priority, agent, team)
  if C('HEXISTS', K .. 'limits', 'q') == 0 then return nil, {} end
  local fields, needed, drops = {}, {}, {}
  for step in words(ready) do fields['header:' .. step], fields['chain:' .. step], fields['tokens:' .. step] = '', '', '' end
  for i = from, #ARGV, 2 do
    if fields[ARGV[i]] then fields[ARGV[i]] = ARGV[i + 1] end
  end
  for step in words(ready) do
    local q, cost = string.match(fields['header:' .. step], '^(%S+) (%S+)')
    if fields['chain:' .. step] ~= '' then
      local links = parse_chain(fields['chain:' .. step])
      q = links[choose_link(links, '', nil, cost, agent, team_of(agent, team), fields['tokens:' .. step])].q
    end
    needed[q] = (needed[q] or 0) + 1
  end
  for q, count in pairs(needed) do
    local most, policy = queue_limit(q)
    local waiting = most and count_waiting(q)
    if most and waiting + count > most then
      local droppable = policy == 'drop-oldest-batch' and priority == '0' and count <= most and find_droppable(q, waiting + count - most)
      if not droppable then return {'queue', q, int_text(waiting), int_text(most), int_text(count)} end
      drops[#drops + 1] = {q, most, count, droppable}
    end
  end
  return nil, drops
end

-- Drop batch jobs until there is room. Return their ids.
local function make_room(drops)
  local dropped = {}
  for _, drop in ipairs(drops) do
    local q, most, needed, droppable = unpack(drop)
    for _, batch in ipairs(droppable) do
      if count_waiting(q) + needed <= most then break end
      local job, path = unpack(batch)
      if C('EXISTS', job_key(job)) == 1 then  -- it may have waited in two of the queues
        end_job(job, 'failed', cjson.encode({error = 'QueueDropped', code = 'queue.dropped',
          message = 'The batch job was dropped for an interactive one: the queue ' .. q .. ' was full',
          details = {path = path, queue = q, limit = most, reason = 'its policy is drop-oldest-batch, and this job had waited longest',
            fix = 'submit it again when there is less to do, or raise max_pending of ' .. q .. ' in the quotas file'}}))
        dropped[#dropped + 1] = job
      end
    end
  end
  return dropped
end
