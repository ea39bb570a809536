-- Release a stage in quarantine, so that it runs again with its deaths forgotten, or drop it.
--
-- ARGS
--   verb  release | drop
--   job   id of the job
--   step  number of the step
--   by    the operator's name
-- RETURNS  released | plain | celery (dropped: the job failed) | before (it was released before) | not (it is not in quarantine) |
--          over (the job has ended) | unknown (no such job) | an error SCHEMA
local schema_error = check_schema(C('GET', K .. 'schema'))
if schema_error then return schema_error end
local j = job_key(job)
local quarantine, released_by, excluded, unfit, steps = unpack(C('HMGET', j,
  'quarantine:' .. step, 'released_by:' .. step, 'excluded:' .. step, 'unfit:' .. step, 'steps'))
if not steps then return C('EXISTS', K .. 'result:' .. job) == 1 and 'over' or 'unknown' end
if not quarantine then return verb == 'release' and released_by and 'before' or 'not' end
if verb == 'drop' then return drop_step(job, step, by) end
C('ZREM', K .. 'quarantine', job .. ':' .. step)
C('HDEL', j, 'quarantine:' .. step, 'deaths:' .. step, 'excluded:' .. step)
C('HSET', j, 'released_by:' .. step, by)
if unfit then C('HSET', j, 'excluded:' .. step, unfit) end
for seat in string.gmatch(excluded or '', '[^,]+') do
  local entry = job .. ':' .. step .. ':' .. seat
  C('ZREM', K .. 'delays', 'backoff:' .. entry, 'loss:' .. entry)
end
make_ready(job, step)
return 'released'
