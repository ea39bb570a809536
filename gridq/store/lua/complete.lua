-- Record a stage's output and claim the slot's next stage. In one call: check the fence, store the output, settle the reservation,
-- close the lease, make dependent stages ready, send wake-ups.
--
-- ARGS
--   lease        the attempt's lease
--   output       a value as JSON, or '@name' of a value that was written before
--   used         'micro-dollars,tokens in,tokens out,gpu-ms'
--   rows         rows of the job's history, as JSON
--   seat         name of the seat
--   incarnation  the start of its worker that calls
--   slot         name of the slot
--   nonce        makes the lease of the next claim unique
--   go_on        '1' to claim the next stage
--   events       what Celery's monitors are told, as JSON, or ''
-- RETURNS  {1 recorded | 0 recorded before | -1 the attempt no longer counts | -2 the value is missing,
--           '' | plain | celery (the job ended), the next claim, 1 if advance.lua should go on with this job}
--
-- A lapsed lease still counts while nobody else has claimed the stage: a call that was paid for is not thrown away.
local job, step, fence = parse_lease(lease)
local j = job_key(job)
local current, done, answer, steps, header, arm_true, arm_false, team, agent, unfinished, budget, started_at, working = unpack(C('HMGET', j,
  'lease:' .. step, 'done:' .. step, 'answer', 'steps', 'header:' .. step, 'arm:' .. step .. ':1', 'arm:' .. step .. ':0',
  'charged_team', 'agent', 'unfinished', 'budget', 'started_at:' .. step, 'working'))
local use = parse_usage(used)
local is_link = string.sub(output, 1, 1) == '@'
local result, ended, pure, later = 1, '', {}, {}
if current ~= fence then
  if not steps then
    --[
    stop_remaining(job, step)
    --]
  end
  local holder, names = close_lease(lease)
  local attempt = describe_attempt(agent, header)
  local charged = settle(lease, holder, used, 'late', attempt, names)  -- a late attempt is charged to the seat, never to the agent
  if holder then remember_closed(lease, holder, used, attempt, names) end
  local ended_job = not steps and not charged  -- the job is gone, and this lease was not taken from its seat
  result = (done == fence or ended_job) and 0 or -1
  if is_link and done ~= fence then  -- the caller has just written a value that nobody will read
    local final = K .. 'result:' .. job
    if C('LINDEX', final, 0) ~= 'done\n' .. output then unlink_value(output)
    else C('PEXPIRE', K .. 'value:' .. string.sub(output, 2), C('PTTL', final)) end
  end
elseif is_link and C('EXISTS', K .. 'value:' .. string.sub(output, 2)) == 0 then
  return {-2, '', {'none'}, 0}
else
  local holder, names = close_lease(lease)
  if team and use.any then count_use(agent, team, use) end
  settle(lease, holder, used, 'done', describe_attempt(agent, header, started_at, team), names)
  if not holder then take_back(job, step, fence); C('DEL', K .. 'closed_lease:' .. lease) end
  if team and use.any then
    local team_crossed = spend_reserved(job, agent, team, use)
    local over = is_over_limit(agent, team)
    if over or team_crossed then
      --[
      if over then park('a:' .. agent .. ':' .. team) end
      if team_crossed then park('t:' .. team) end
      --]
    end
  end
  local left = tonumber(unfinished) - 1
  local budget_left = budget and use.money > 0 and C('HINCRBY', j, 'budget', int_text(-use.money)) or 0
  local is_first_row = C('RPUSH', K .. 'rows:' .. job, rows) == 1
  if is_link then
    C('SADD', K .. 'values:' .. job, string.sub(output, 2))
    C('PEXPIRE', K .. 'values:' .. job, C('PTTL', j))
  end
  if events ~= '' then publish(events) end
  if left > 0 and budget_left < 0 then
    ended = end_job(job, 'failed', build_budget_error(read_header(job, step, header).path, -budget_left), left)
  elseif left > 0 then  -- the last step needs no fields: the job's record goes with it
    if is_first_row then C('PEXPIRE', K .. 'rows:' .. job, C('PTTL', j)) end
    C('HSET', j, 'output:' .. step, output, 'done:' .. step, fence, 'unfinished', left)
    C('HDEL', j, 'lease:' .. step)
    local h = read_header(job, step, header)
    local few = (#h.dependents + 1) / 2 * (1 + READY_COST) <= MAX_WALK - walked  -- so few that this call may release them all
    if working or arm_true or not few then
      --[
      if not is_restarting(job, h.scope, working) then
        local arm = arm_true and (output == 'true' and 0 or 1)
        local pieces, skipped = pieces_after(job, step, h.dependents, arm, arm == 1 and arm_true or arm_false)
        left = left - skipped
        do_work(job, working, pieces, pure, later)
      end
      --]
    else release_dependents(job, h.dependents, 1, pure, later) end
  end
  if left <= 0 then
    ended = end_job(job, 'done', step == answer and output or C('HGET', j, 'output:' .. answer), 0)
    pure = {}
  end
end
local own = go_on == '1' and pure[1] and may_claim(seat, incarnation, slot) and pure[1]
for i = own and 2 or 1, #pure do make_ready(job, pure[i], later) end
local following = {'none'}
if own then following = claim_pure(job, own, seat, slot, nonce)
elseif go_on == '1' then following = claim_stage(seat, incarnation, slot, nonce) end
-- Send a wake-up for each stage that became ready, except one in the queue from which this slot has just claimed.
local claimed_queue = not own and following[2] and string.match(following[3], '^%S+ %S+ %S+ %S+ (%S+)')
for _, wake_up in ipairs(later) do
  if wake_up[1] == claimed_queue then claimed_queue = nil else wake_seat(unpack(wake_up, 1, 7)) end
end
if go_on == '1' then return {result, ended, following, work_left and 1 or 0} end
local queues, draining, live_incarnation = unpack(C('HMGET', K .. 'seat:' .. seat, 'queues', 'draining', 'incarnation'))
if live_incarnation == incarnation and not draining and C('ZSCORE', K .. 'seats', seat) then mark_idle(seat, queues) end
wake_queues(queues)
return {result, ended, {'none'}, work_left and 1 or 0}
