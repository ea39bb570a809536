-- End an attempt without an output.
--
-- ARGS
--   lease         the attempt's lease
--   kind          stage (its own fault, it fails for good) | seat | unreached (the seat's endpoint got nothing of it) | died | lost |
--                 back (handed back)
--   pause_ms      how long the seat backs off from this stage
--   used          'micro-dollars,tokens in,tokens out,gpu-ms'
--   error_record  the error as JSON
--   row           row of the job's history as JSON, or ''
--   seat          name of the seat
--   events        what Celery's monitors are told of the attempt so far, as JSON, or ''
--   uuid          the stage's id there, or '' if no monitor listens
--   why           why it stopped
-- RETURNS  again (it is waiting, or a Retry starts) | quarantined | plain | celery (the job failed) | fenced;
--          with ' more' after it if advance.lua should go on with this job
local job, step, fence = parse_lease(lease)
local j = job_key(job)
local current, agent, header, started_at = unpack(C('HMGET', j, 'lease:' .. step, 'agent', 'header:' .. step, 'started_at:' .. step))
if not agent then stop_remaining(job, step) end
local holder, names = close_lease(lease)
local attempt = describe_attempt(agent, header, holder and started_at)
-- for the ledger, an attempt that reached nobody is one that was handed back: no request of its seat
local what = kind == 'stage' and 'failed' or kind == 'unreached' and 'back' or kind
local _, is_first = settle(lease, holder, used, holder and what or 'late', attempt, names)
if holder then remember_closed(lease, holder, used, attempt, names) end
if events ~= '' and is_first then publish(events) end
if current ~= fence then return 'fenced' end
if not holder then take_back(job, step, fence) elseif kind == 'seat' or kind == 'unreached' or kind == 'died' then count_outcomes(holder, 0, 1) end
C('HDEL', j, 'lease:' .. step)
if row ~= '' and C('RPUSH', K .. 'rows:' .. job, row) == 1 then C('PEXPIRE', K .. 'rows:' .. job, C('PTTL', j)) end
local after
if kind == 'stage' then after = fail_step(job, step, error_record)
else after = end_attempt(job, step, seat, kind, tonumber(pause_ms), error_record) end
if uuid ~= '' then publish_stop((after == 'again' or after == 'quarantined') and 'retried' or 'failed', uuid, seat, why) end
return work_left and after .. ' more' or after
