-- End a job from outside: refused before it was admitted, or cancelled wherever it stands.
-- ARGV  job, state (failed, cancelled), error as JSON, '1' only while it stands in the inbox
-- gives plain | celery (its answer is to be written to Celery's backend) | over (it had ended, or left the inbox) | unknown | an error SCHEMA
local job = ARGV[1]
local other = other_schema(C('GET', K .. 'schema'))
if other then return other end
if C('EXISTS', K .. 'result:' .. job) == 1 then return 'over' end
if C('EXISTS', jobkey(job), K .. 'submitted:' .. job) == 0 then return 'unknown' end
if ARGV[4] == '1' and C('EXISTS', jobkey(job)) == 1 then return 'over' end
local idem = ARGV[4] == '1' and C('HGET', K .. 'submitted:' .. job, 'idempotency_key')
local ended = finish(job, ARGV[2], ARGV[3])
if idem then C('DEL', K .. 'idempotency:' .. idem) end  -- what was refused may come again
return ended
