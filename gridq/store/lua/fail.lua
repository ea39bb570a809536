-- An attempt ended without an output.
-- ARGV  lease, kind (stage: the stage's own fault, it fails for good | seat | died | lost | back), pause in ms, what it
--       used ('micro-dollars,tokens in,tokens out'), error as JSON, row as JSON or '', seat; what monitors are told of the attempt so far as JSON, the stage's id there and
--       why it stopped (all '' where none listens)
-- gives again (it is pending or a Retry starts) | quarantined | plain | celery (the job failed) | fenced
local lease, kind, pause, used, err, row, seat, told, uuid, why = unpack(ARGV)
local job, step, rest = parse(lease)
local j = jobkey(job)
local by, names = free(lease)
local f = C('HMGET', j, 'lease:' .. step, 'agent', 'header:' .. step, 'started_at:' .. step)
local of = attempt_of(f[2], f[3], by and f[4])
local _, first = settle(lease, by, used, by and (kind == 'stage' and 'failed' or kind) or 'late', of, names)
if by then remember(lease, by, used, of, names) end
if told ~= '' and first then publish(told) end
if f[1] ~= rest then return 'fenced' end
if not by then recall(job, step, rest) elseif kind == 'seat' or kind == 'died' then tally(by, 0, 1) end
C('HDEL', j, 'lease:' .. step)
if row ~= '' and C('RPUSH', K .. 'rows:' .. job, row) == 1 then C('PEXPIRE', K .. 'rows:' .. job, C('PTTL', j)) end
local after
if kind == 'stage' then after = failed(job, step, err)
else after = attempt_failed(job, step, seat, kind, tonumber(pause), err) end
if uuid ~= '' then tell_stop((after == 'again' or after == 'quarantined') and 'retried' or 'failed', uuid, seat, why) end
return after
