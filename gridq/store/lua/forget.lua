-- Delete what is kept of an ended job for those who read it: its answer, its events, its response object, and the idempotency key
-- under which it would be found again. Its summary and its rows stay until its result would have expired.
--
-- ARGS
--   job  id of the job
-- RETURNS  1 | 0 it has not ended, or its answer is gone | 2 it has ended, but not all of its steps are stopped: call again
local result, response = K .. 'result:' .. job, K .. 'response:' .. job
local answer = string.match(C('LINDEX', result, 0) or '', '^%S+\n(.*)$')
if not answer then return 0 end
if not clean_up(job) then return 2 end
unlink_value(answer)
local idempotency_key = C('HGET', K .. 'summary:' .. job, 'idempotency_key')
if idempotency_key then
  local key = K .. 'idempotency:' .. idempotency_key
  if string.match(C('GET', key) or '', '^%S+') == job then C('UNLINK', key) end
end
C('UNLINK', result, K .. 'stream:' .. job, response)
return 1
