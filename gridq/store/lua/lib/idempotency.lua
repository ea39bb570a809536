-- One body under one id, and one job under one idempotency key.
--
-- A job that was submitted under an id or a key of its submitter's own has the digest of its body in its field `body`, under a
-- key also `idem`: <agent>:<digest of the key>. idem:<that>: 'job digest'.

-- Whether a known job was submitted with another body than the one with this digest. '' is a call that is repeated under an id of its
-- own making; a job without a digest has such an id, so that who gives it means other work.
local function has_other_body(job, digest)
  if digest == '' then return false end
  for _, key in ipairs({job_key(job), K .. 'submitted:' .. job, K .. 'summary:' .. job}) do
    local known = C('HGET', key, 'body_digest')
    if known then return known ~= digest end
  end
  return true
end

-- The job that an agent submitted under this key before; second: whether with another body. nil where there is none.
local function find_by_key(idem, digest)
  local job, known = string.match(idem ~= '' and C('GET', K .. 'idempotency:' .. idem) or '', '^(%S+) (%S+)$')
  return job, known ~= digest
end
