-- End a job from outside: refused before it was admitted, or cancelled wherever it is.
--
-- ARGS
--   job           id of the job
--   state         failed | cancelled
--   error_record  the error as JSON
--   inbox_only    '1' to end it only while it is in the inbox
-- RETURNS  plain | celery (its answer must be written to Celery's backend) | over (it had ended, or left the inbox) | unknown |
--          an error SCHEMA; plain and celery with ' more' after it if advance.lua should go on with this job
local schema_error = check_schema(C('GET', K .. 'schema'))
if schema_error then return schema_error end
if C('EXISTS', K .. 'result:' .. job) == 1 then return 'over' end
if C('EXISTS', job_key(job), K .. 'submitted:' .. job) == 0 then return 'unknown' end
if inbox_only == '1' and C('EXISTS', job_key(job)) == 1 then return 'over' end
local idempotency_key = inbox_only == '1' and C('HGET', K .. 'submitted:' .. job, 'idempotency_key')
local ended = end_job(job, state, error_record)
if idempotency_key then C('DEL', K .. 'idempotency:' .. idempotency_key) end  -- a refused job may be submitted again
return work_left and ended .. ' more' or ended
