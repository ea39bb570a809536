-- Bounded queues: how many stages may stand ready in a queue when a job is admitted. What becomes ready later, in jobs that were
-- admitted, is never kept out.
--
-- limits: q:<queue> and q:* (each capability that has none of its own) → 'most policy'; q: how many of these there are.

local function count_waiting(q)  -- how many stages stand ready in a queue
  local sum = 0
  for _, n in ipairs(C('HVALS', K .. 'classes:' .. q)) do sum = sum + n end
  return sum
end

-- The most that may stand in a queue, nil where nothing bounds it; second: what is done where it is full.
local function queue_limit(q)
  local f = C('HMGET', K .. 'limits', 'q:' .. q, 'q:*')
  local most, policy = string.match(f[1] or not is_free(q) and f[2] or '', '^(%d+) (%S+)$')
  return tonumber(most), policy
end

-- Where batch stages of a queue stand: {class, agent} of each set of them, of very many some. Agents whose stages stand aside
-- for want of money are among them.
local function batch_sets(q)
  local found = {}
  for _, cls in ipairs(C('HKEYS', K .. 'classes:' .. q)) do
    if string.sub(cls, 1, 2) ~= '0/' and #found < 128 then
      for _, agent in ipairs(C('ZRANGE', K .. 'ready:' .. q .. ':' .. cls, 0, 127 - #found)) do found[#found + 1] = {cls, agent} end
    end
  end
  for _, agent in ipairs(C('HRANDFIELD', K .. 'parked_agents', 32)) do
    for _, m in ipairs(C('SMEMBERS', K .. 'parked:' .. agent)) do
      local queue, cls = string.match(m, '^(%S+) (.*)$')
      if queue == q and string.sub(cls, 1, 2) ~= '0/' then found[#found + 1] = {cls, agent} end
    end
  end
  return found
end

-- The batch jobs whose end would make room for `short` stages of a queue, as {job, path of the stage that stands there}, those that
-- stand there the longest first; nil where there are not enough. At most 64 stages and jobs of 5000 steps in all: nobody else is
-- served meanwhile.
local function find_droppable(q, short)
  if short > 64 then return nil end
  local stages, seen, chosen, steps = {}, {}, {}, 0
  for _, set in ipairs(batch_sets(q)) do
    -- some more than are needed: a job that is passed over stands before others
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

-- Whether the ready steps of a job have room in their queues; a step with a chain in the one where it would stand. `ready`: the steps;
-- `at`: where in ARGV the fields of its plan begin. Gives nil and who has to give way for it ({queue, most, needed, {{job, path} …}}
-- …), or {'queue', queue, pending, limit, needed}. Nothing is written.
local function check_room(ready, at, prio, agent, team)
  if C('HEXISTS', K .. 'limits', 'q') == 0 then return nil, {} end
  local told, needed, drops = {}, {}, {}
  for s in words(ready) do told['header:' .. s], told['chain:' .. s], told['tokens:' .. s] = '', '', '' end
  for i = at, #ARGV, 2 do
    if told[ARGV[i]] then told[ARGV[i]] = ARGV[i + 1] end
  end
  for s in words(ready) do
    local q, cost = string.match(told['header:' .. s], '^(%S+) (%S+)')
    if told['chain:' .. s] ~= '' then
      local links = parse_chain(told['chain:' .. s])
      q = links[choose_link(links, '', nil, cost, agent, team_of(agent, team), told['tokens:' .. s])].q
    end
    needed[q] = (needed[q] or 0) + 1
  end
  for q, count in pairs(needed) do
    local most, policy = queue_limit(q)
    local pending = most and count_waiting(q)
    if most and pending + count > most then
      local who = policy == 'drop-oldest-batch' and prio == '0' and count <= most and find_droppable(q, pending + count - most)
      if not who then return {'queue', q, int_text(pending), int_text(most), int_text(count)} end
      drops[#drops + 1] = {q, most, count, who}
    end
  end
  return nil, drops
end

-- End those who give way, until there is room. Gives their ids.
local function make_room(drops)
  local ended = {}
  for _, drop in ipairs(drops) do
    local q, most, needed, who = unpack(drop)
    for _, giver in ipairs(who) do
      if count_waiting(q) + needed <= most then break end
      if C('EXISTS', job_key(giver[1])) == 1 then  -- it may have stood in two of the queues
        end_job(giver[1], 'failed', cjson.encode({error = 'QueueDropped', code = 'queue.dropped',
          message = 'The batch job gave way to an interactive one: the queue ' .. q .. ' was full',
          details = {path = giver[2], queue = q, limit = most, reason = 'its policy is drop-oldest-batch, and this job stood there the longest',
            fix = 'submit it again when there is less to do, or raise max_pending of ' .. q .. ' in the quotas file'}}))
        ended[#ended + 1] = giver[1]
      end
    end
  end
  return ended
end
