-- One body for each job id, and one job for each idempotency key.
--
-- A job that was submitted under an id or a key of the submitter's choice has the digest of its body in the field `body_digest`,
-- and with a key also `idempotency_key`, '<agent>:<digest of the key>'. idempotency:<that> is 'job digest'.

-- Return whether a known job was submitted with another body than the one with this digest. '' is a repeated call whose id was
-- generated. A job without a digest has a generated id, so a caller who names it has other work.
local function has_other_body(job, digest)
  if digest == '' then return false end
  for _, key in ipairs({job_key(job), K .. 'submitted:' .. job, K .. 'summary:' .. job}) do
    local known = C('HGET', key, 'body_digest')
    if known then return known ~= digest end
  end
  return true
end

-- Return the job that an agent submitted under this key before, and whether it had another body; nil if there is none.
local function find_by_key(idem, digest)
  local job, known = string.match(idem ~= '' and C('GET', K .. 'idempotency:' .. idem) or '', '^(%S+) (%S+)$')
  return job, known ~= digest
end
