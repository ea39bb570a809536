-- Quarantine: stages that have killed the processes that ran them wait for an operator. lib/failed_attempts.lua decides which.

-- Quarantine a stage that may kill every process that runs it: it waits in no pending set until an operator decides or its time is over.
-- No Retry restarts it: its next try would kill the next worker.
local function quarantine_step(job, step, err)
  if QUARANTINE == 0 then return end_job(job, 'failed', add_counts(job, step, err)) end
  C('HSET', job_key(job), 'quarantine:' .. step, NOW + QUARANTINE .. ' ' .. err)
  C('ZADD', K .. 'quarantine', NOW + QUARANTINE, job .. ':' .. step)
  return 'quarantined'
end

-- Drop a stage in quarantine, in the name of `by`: its job fails. Return what end_job returns, nil if it is not in quarantine.
local function drop_step(job, step, by)
  local err = string.match(C('HGET', job_key(job), 'quarantine:' .. step) or '', '^%S+ (.*)$')
  if not err then return nil end
  publish_stop('failed', job .. '.' .. step, monitoring_router(), 'stage.quarantined')
  return end_job(job, 'failed', add_details(add_counts(job, step, err), '"step":' .. step .. ',"dropped_by":' .. cjson.encode(by)))
end
