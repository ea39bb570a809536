-- An operator's word about a stage in quarantine: run it again as if it had killed nobody yet, or give it up.
-- ARGV  verb (release | drop), job, step, who says so
-- gives released | plain | celery (dropped: the job failed) | before (it was released before) | not (it stands in no quarantine) |
--       over (the job has ended) | unknown (there is no such job) | an error SCHEMA
local other = other_schema(C('GET', K .. 'schema'))
if other then return other end
local verb, job, step, by = unpack(ARGV)
local j = jobkey(job)
local f = C('HMGET', j, 'quarantine:' .. step, 'released_by:' .. step, 'excluded:' .. step, 'unfit:' .. step, 'steps')
if not f[5] then return C('EXISTS', K .. 'result:' .. job) == 1 and 'over' or 'unknown' end
if not f[1] then return verb == 'release' and f[2] and 'before' or 'not' end
if verb == 'drop' then return drop(job, step, by) end
C('ZREM', K .. 'quarantine', job .. ':' .. step)
C('HDEL', j, 'quarantine:' .. step, 'deaths:' .. step, 'excluded:' .. step)
C('HSET', j, 'released_by:' .. step, by)
if f[4] then C('HSET', j, 'excluded:' .. step, f[4]) end
for s in string.gmatch(f[3] or '', '[^,]+') do
  C('ZREM', K .. 'delays', 'backoff:' .. job .. ':' .. step .. ':' .. s, 'loss:' .. job .. ':' .. step .. ':' .. s)
end
push(job, step)
return 'released'
