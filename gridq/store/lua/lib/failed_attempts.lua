-- What follows an attempt that ended without a result: another attempt, quarantine, or the failure of the stage.

-- An attempt ended without a result, through no fault of the stage. `kind`: seat (counts up to MAX_ATTEMPTS, for a stage with a chain at
-- each link; the seat backs off for `pause` ms), unreached (the same, but nothing counts: the seat's endpoint got nothing of it), lost (its
-- lease lapsed: counts up to MAX_LOSSES), died (the process that ran it died: quarantine after two), back (handed back: nothing counts; the
-- seat backs off only if `pause` says so, as where the model that the stage needs is in cooldown; a stage with a chain may go on to
-- another model there instead).
--
-- A seat that failed a stage is excluded: after its back-off it may take the stage again only if no other seat could (the sweep checks,
-- as long as that is so). A seat that lost it or whose process died is excluded for one lease. Returns again | quarantined | plain | celery.
local function end_attempt(job, step, seat, kind, pause, err)
  local j = job_key(job)
  local limit = ({seat = {'failures:', MAX_ATTEMPTS}, lost = {'losses:', MAX_LOSSES}, died = {'deaths:', 2}})[kind]
  local is_last = limit and C('HINCRBY', j, limit[1] .. step, 1) >= limit[2]
  local pieces, chain, chain_failures, header = unpack(C('HMGET', j,
    'pieces:' .. step, 'chain:' .. step, 'chain_failures:' .. step, 'header:' .. step))
  if kind == 'seat' and chain then is_last = not count_chain_failure(job, step, chain, chain_failures, header) end
  if is_last and kind == 'died' and not pieces then return quarantine_step(job, step, err) end
  if is_last or pieces then return fail_step(job, step, add_counts(job, step, err)) end  -- no second try after the first token
  local has_left = kind == 'back' and pause > 0 and chain and seat and leave_link(job, step, chain, chain_failures, header, seat)
  if (limit or kind == 'unreached' or pause > 0) and seat and not has_left then
    local excluded = C('HGET', j, 'excluded:' .. step) or ''
    if not is_excluded(excluded, seat) then
      C('HSET', j, 'excluded:' .. step, excluded == '' and seat or excluded .. ',' .. seat)
    end
    -- backoff: the seat asked for this pause and gets it. loss: other seats first, for one lease, unless there are none (the sweep checks).
    local entry = job .. ':' .. step .. ':' .. seat
    if pause > 0 then schedule(job, NOW + pause, 'backoff:' .. entry) else schedule(job, NOW + LEASE, 'loss:' .. entry) end
  end
  make_ready(job, step)
  return 'again'
end
