-- Find what nobody else looks at; run twice a second by every router, each item atomic, so it needs no lock.
-- ARGV  most items of each sort
-- gives {grace, died, seats gone, due, expired, rung, voided, job whose answer is to be written …}
-- TTL   swept lives an hour
-- uses: base pending jobs seats
local most = tonumber(ARGV[1])
local r = {0, 0, 0, 0, 0, 0, 0}
local last = tonumber(C('GET', K .. 'swept') or NOW)
C('SET', K .. 'swept', NOW, 'PX', 3600000)
if NOW - last > GAP or NOW < last - GAP then
  -- Nobody could renew (the server was away) or the clock jumped: every holder gets one more period.
  for _, z in ipairs({K .. 'leases', K .. 'seats'}) do
    for _, m in ipairs(C('ZRANGE', z, 0, -1)) do C('ZADD', z, NOW + LEASE, m); r[1] = r[1] + 1 end
  end
else
  for _, s in ipairs(C('ZRANGE', K .. 'seats', '-inf', NOW, 'BYSCORE', 'LIMIT', 0, 10)) do gone(s, 'the worker is dead'); r[3] = r[3] + 1 end
  for _, l in ipairs(C('ZRANGE', K .. 'leases', '-inf', NOW, 'BYSCORE', 'LIMIT', 0, most)) do r[2] = r[2] + lost(l, 'its lease lapsed') end
end
for _, m in ipairs(C('ZRANGE', K .. 'delays', '-inf', NOW, 'BYSCORE', 'LIMIT', 0, most)) do
  C('ZREM', K .. 'delays', m)
  r[4] = r[4] + 1
  local kind, job, n, what = string.match(m, '^(%a):([^:]+):(%d+):(.+)$')
  local j = jobkey(job)
  if kind == 'r' and C('HGET', j, 'se:' .. n) == what then  -- a Retry's delay is over
    for s, count in string.gmatch(string.match(C('HGET', j, 'sc:' .. n), '^%S+ %S+ %S+ ([^;]*);'), '(%d+)=(%d+)') do
      if count == '0' then push(job, s) end
    end
  elseif kind == 'p' and (C('HGET', j, 'ep:' .. n) or '0') == what and C('HEXISTS', j, 'h:' .. n) == 1 then
    C('HDEL', j, 'x:' .. n)  -- the only seat's back-off is over
    push(job, n)
  elseif kind == 'x' then  -- a seat's back-off is over: it may try again
    local x = C('HGET', j, 'x:' .. n)
    if x then
      local kept = {}
      for s in string.gmatch(x, '[^,]+') do if s ~= what then kept[#kept + 1] = s end end
      if kept[1] then C('HSET', j, 'x:' .. n, table.concat(kept, ',')) else C('HDEL', j, 'x:' .. n) end
      if unpend(job, n) then push(job, n) end
    end
  end
end
local expired = '{"error":"DeadlineExceeded","code":"job.deadline","message":"The job was not finished by its deadline","details":{}}'
for _, job in ipairs(C('ZRANGE', K .. 'deadlines', '-inf', NOW, 'BYSCORE', 'LIMIT', 0, most)) do
  C('ZREM', K .. 'deadlines', job)
  if C('EXISTS', jobkey(job), K .. 'sub:' .. job) > 0 then finish(job, 'expired', expired); r[5] = r[5] + 1 end
end
local lanes = math.max(1, tonumber(C('HGET', K .. 'lanes', 'gridq:pure') or 0))
for _, job in ipairs(C('ZRANGE', K .. 'inbox', '-inf', NOW, 'BYSCORE', 'LIMIT', 0, most)) do
  C('ZADD', K .. 'inbox', NOW + 2000, job)
  local message = string.gsub(C('HGET', K .. 'bells', 'router') or '', '@@(%u+)@@', {ID = job})
  if message ~= '' and C('LLEN', P .. 'gridq:router') < 8 * lanes then C('LPUSH', P .. 'gridq:router', message); r[6] = r[6] + 1 end
end
for _, q in ipairs(C('SMEMBERS', K .. 'queues')) do
  local classes = C('HKEYS', K .. 'cls:' .. q)
  for _, cls in ipairs(classes) do
    local x = string.match(cls, '|(.*)$')
    if x ~= '' then  -- where every live seat is excluded, the exclusion is void: else the stage would wait for ever
      local live, free_seat = C('SMEMBERS', K .. 'serve:' .. q), false
      if x ~= '*' then for _, s in ipairs(live) do if not has(x, s) then free_seat = true; break end end end
      if #live > 0 and not free_seat then
        for _, agent in ipairs(C('ZRANGE', K .. 'rdy:' .. q .. ':' .. cls, 0, most)) do
          for _, m in ipairs(C('ZRANGE', K .. 'w:' .. q .. ':' .. cls .. ':' .. agent, 0, most)) do
            local job, step = string.match(m, '^([^:]+):(.+)$')
            local own, all = C('HGET', jobkey(job), 'x:' .. step) or '', true
            for _, s in ipairs(live) do if not has(own, s) then all = false; break end end
            if all and unpend(job, step) then C('HDEL', jobkey(job), 'x:' .. step); push(job, step); r[7] = r[7] + 1 end
          end
        end
      end
    end
  end
  if #classes > 0 then ring(q) elseif C('LLEN', P .. q) == 0 then C('SREM', K .. 'queues', q) end
end
for _, job in ipairs(C('ZRANGE', K .. 'answers', '-inf', NOW - 300, 'BYSCORE', 'LIMIT', 0, most)) do
  C('ZADD', K .. 'answers', NOW, job)
  r[#r + 1] = job
end
return r
