-- What the end of one step means for others: dependents become ready, an arm is skipped, the scope of a Retry restarts, the job fails.
--
-- A graph may have thousands of steps, and nobody else is served while a script runs. So a call does a bounded part (MAX_WALK). What is
-- left stands in the list work:<job>, in the order in which it arose, and the job in the sorted set long_work. advance.lua goes on: the caller
-- calls it at once, and the sweep does the same for callers that died. What arises meanwhile stands behind, so each piece of work finds what
-- all those before it have left, as if each were one call. The job's field `working` is then '-' and the scopes that are being restarted:
-- their steps are not claimed, and what still ends there changes nothing.
--
-- A piece of work is
--   ready at                          make ready the steps that the job's field `ready` lists, from this byte on
--   release step at                   count down the dependencies of the step's dependents
--   skip gate arm phase at within     phase 1: mark the steps of an arm as skipped; 2: release the dependents of each, from byte `within` on
--   restart retry at                  stop the steps of a scope and set them back
--   enter retry scope_epoch at        make ready the steps of a scope that wait for none in it
-- As a table it may have its list of steps in `list`.

local READY_COST = 8  -- of make_ready, in commands

-- Call `act` for each step of a list ('3 4', '3,4' or, with a count each, '3=0 4=2') from byte `at` on, as far as this call may and until
-- `act` returns true. Return nil, or the byte where to go on.
local function walk_steps(list, at, act)
  local _, stop, step, count = string.find(list, '(%d+)=?(%d*)', at)
  while step do
    if walked >= MAX_WALK or act(step, count) then return at end
    at = stop + 1
    _, stop, step, count = string.find(list, '(%d+)=?(%d*)', at)
  end
end

-- Count down the dependencies of each dependent step; those without any left become ready. If `pure` is given, pure steps are added to it
-- instead: the slot that completes runs the first of them itself. `at` and what is returned: as for walk_steps.
local function release_dependents(job, dependents, at, pure, later)
  local j = job_key(job)
  return walk_steps(dependents, at, function(d)
    walked = walked + 1
    if C('HINCRBY', j, 'dependencies:' .. d, -1) == 0 and C('HEXISTS', j, 'skipped:' .. d) == 0 then
      walked = walked + READY_COST
      if pure and read_header(job, d).q == 'gridq:pure' then pure[#pure + 1] = d else make_ready(job, d, later) end
    end
  end)
end

-- The functions below do one kind of work each, as far as this call may, and note in the piece how far. They return whether it is done.

local function do_ready(job, piece, later)
  local j = job_key(job)
  piece[2] = walk_steps(piece.list or C('HGET', j, 'ready'), piece[2], function(step)
    make_ready(job, step, later)
    walked = walked + READY_COST
  end)
  if not piece[2] and not piece.list then C('HDEL', j, 'ready') end
  return not piece[2]
end

local function do_skip(job, piece, pure, later)
  local j = job_key(job)
  local list = piece.list or C('HGET', j, 'arm:' .. piece[2] .. ':' .. piece[3])
  if piece[4] == 1 then
    piece[5] = walk_steps(list, piece[5], function(step)
      C('HSET', j, 'skipped:' .. step, 1)
      walked = walked + 1
    end)
    if piece[5] then return false end
    piece[4], piece[5] = 2, 1
  end
  piece[5] = walk_steps(list, piece[5], function(step)
    local within = release_dependents(job, read_header(job, step).dependents, piece[6], pure, later)
    walked, piece[6] = walked + 2, within or 1
    return within ~= nil
  end)
  return not piece[5]
end

-- Restart a scope: stop each step in it, raise its epoch, set its counters back. Then the piece makes the first of them ready, unless that
-- waits for the Retry's delay.
local function do_restart(job, piece)
  local j, retry, again = job_key(job), piece[2], 0
  local wait, list, inner = string.match(C('HGET', j, 'scope:' .. retry), '^%S+ %S+ (%S+) ([^;]*);(.*)$')
  piece[3] = walk_steps(list, piece[3], function(s, count)
    walked = walked + (stop_step(job, s) and 20 or 8)
    local output, skipped, unfit = unpack(C('HMGET', j, 'output:' .. s, 'skipped:' .. s, 'unfit:' .. s))
    if output or skipped then again = again + 1 end
    C('HDEL', j, 'output:' .. s, 'skipped:' .. s, 'done:' .. s, 'lease:' .. s, 'failures:' .. s, 'losses:' .. s, 'deaths:' .. s,
      'excluded:' .. s, 'ready_at:' .. s, 'pieces:' .. s, 'released_by:' .. s, 'chain_failures:' .. s)
    if unfit then C('HSET', j, 'excluded:' .. s, unfit) end
    C('HSET', j, 'dependencies:' .. s, count)
    C('HINCRBY', j, 'epoch:' .. s, 1)
  end)
  if again > 0 then C('HINCRBY', j, 'unfinished', again) end
  if piece[3] then return false end
  for nested in words(inner) do C('HDEL', j, 'tries:' .. nested); C('HINCRBY', j, 'scope_epoch:' .. nested, 1) end
  local epoch = C('HINCRBY', j, 'scope_epoch:' .. retry, 1)
  if piece.marked or not piece.fresh then
    local left = {}
    for other in words(C('HGET', j, 'working')) do if other ~= retry then left[#left + 1] = other end end
    C('HSET', j, 'working', table.concat(left, ' '))
  end
  if wait == '0' then piece[1], piece[3], piece[4] = 'enter', epoch, 1
  else schedule(job, NOW + tonumber(wait), 'retry:' .. job .. ':' .. retry .. ':' .. epoch) end
  return true
end

local function do_enter(job, piece, later)
  local j, retry = job_key(job), piece[2]
  if C('HGET', j, 'scope_epoch:' .. retry) ~= tostring(piece[3]) then return true end  -- it has been restarted since
  local list = string.match(C('HGET', j, 'scope:' .. retry), '^%S+ %S+ %S+ ([^;]*);')
  piece[4] = walk_steps(list, piece[4], function(step, count)
    if count == '0' then
      make_ready(job, step, later)
      walked = walked + READY_COST
    end
  end)
  return not piece[4]
end

local function do_piece(job, piece, pure, later)
  local kind = piece[1]
  if kind == 'ready' then return do_ready(job, piece, later) end
  if kind == 'skip' then return do_skip(job, piece, pure, later) end
  if kind == 'release' then
    piece[3] = release_dependents(job, piece.list or read_header(job, piece[2]).dependents, piece[3], pure, later)
    return not piece[3]
  end
  if kind == 'restart' and not do_restart(job, piece) then return false end
  return piece[1] ~= 'enter' or do_enter(job, piece, later)
end

-- Do pieces of work for a running job, after those that are left of it. `working`: its field. `pure` counts only if nothing was left.
-- Return whether something is left now.
local function do_work(job, working, pieces, pure, later)
  local key, first = K .. 'work:' .. job, 1
  if not working then
    while pieces[first] and do_piece(job, pieces[first], pure, later) do first = first + 1 end
    if not pieces[first] then return false end
  end
  for i = first, #pieces do
    local piece = pieces[i]
    if piece[1] == 'ready' then C('HSET', job_key(job), 'ready', piece.list)
    elseif piece[1] == 'restart' and not piece.marked then
      C('HSET', job_key(job), 'working', (working or '-') .. ' ' .. piece[2])
    end
    C('RPUSH', key, table.concat(piece, ' '))
  end
  if not working then
    C('PEXPIRE', key, C('PTTL', job_key(job)))
    C('HSETNX', job_key(job), 'working', '-')
    C('ZADD', K .. 'long_work', NOW, job)
  else
    local text = C('LINDEX', key, 0)
    while text and walked < MAX_WALK do
      local piece = {}
      for word in words(text) do piece[#piece + 1] = tonumber(word) or word end
      if piece[1] == 'restart' or piece[1] == 'enter' then piece[2] = tostring(piece[2]) end
      if do_piece(job, piece, nil, later) then C('LPOP', key) else C('LSET', key, 0, table.concat(piece, ' ')) end
      text = C('LINDEX', key, 0)
    end
    if not text then
      C('HDEL', job_key(job), 'working')
      C('ZREM', K .. 'long_work', job)
      return false
    end
  end
  work_left = true
  return true
end

-- Return whether a scope, or one around it, is being restarted. `working`: the job's field.
local function is_restarting(job, scope, working)
  if not working or working == '-' then return false end
  while scope do
    if string.find(working .. ' ', ' ' .. scope .. ' ', 1, true) then return true end
    scope = string.match(C('HGET', job_key(job), 'scope:' .. scope), '^(%d+) ')
  end
  return false
end

-- Return the pieces of work after a step whose output was recorded, and how many steps are skipped by it. `arm`: the number of the arm that
-- is not taken, and `list` its steps, if the step is a gate.
local function pieces_after(job, step, dependents, arm, list)
  local pieces, skipped = {}, 0
  if arm then
    for _ in words(list) do skipped = skipped + 1 end
    if skipped > 0 then
      C('HINCRBY', job_key(job), 'unfinished', -skipped)
      pieces[1] = {'skip', step, arm, 1, 1, 1, list = list}
    end
  end
  if dependents ~= '-' then pieces[#pieces + 1] = {'release', step, 1, list = dependents} end
  return pieces, skipped
end

-- A step has failed for good: the innermost Retry with a try left restarts, else the job fails.
local function fail_step(job, step, err)
  local j = job_key(job)
  local header, working = unpack(C('HMGET', j, 'header:' .. step, 'working'))
  local retry = read_header(nil, nil, header).scope
  if is_restarting(job, retry, working) then return 'again' end
  while retry do
    local scope = C('HGET', j, 'scope:' .. retry)
    local parent, max = string.match(scope, '^(%S+) (%S+) ')
    if C('HINCRBY', j, 'tries:' .. retry, 1) < tonumber(max) then
      local piece = {'restart', retry, 1, fresh = not working, marked = working or #scope > 2000}
      if piece.marked then C('HSET', j, 'working', (working or '-') .. ' ' .. retry) end
      if not do_work(job, working, {piece}) and piece.marked and not working then C('HDEL', j, 'working') end
      return 'again'
    end
    retry = parent ~= '-' and parent or nil
  end
  return end_job(job, 'failed', err)
end

-- Add details to an error record, compact JSON that ends with its details. This is done in text: Lua cannot read JSON and write it again
-- unchanged.
local function add_details(err, more)
  if string.sub(err, -2) ~= '}}' or more == '' then return err end
  return string.sub(err, 1, -3) .. (string.sub(err, -3) == '{}}' and '' or ',') .. more .. '}}'
end

-- Add to an error record how often its step was claimed, and how attempts went wrong.
local function add_counts(job, step, err)
  local names = {'attempts', 'failures', 'losses', 'deaths'}
  local counts, more = C('HMGET', job_key(job), 'attempts:' .. step, 'failures:' .. step, 'losses:' .. step, 'deaths:' .. step), {}
  for i, name in ipairs(names) do
    if counts[i] then more[#more + 1] = '"' .. name .. '":' .. counts[i] end
  end
  return add_details(err, table.concat(more, ','))
end
