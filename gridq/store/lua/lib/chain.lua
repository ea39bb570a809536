-- Fall-back chains: a stage that asks for one capability, else for another.
--
-- Fields of its job: fb:<step> = 'n queue|unfit queue|unfit …', its links, each with the seats that do not fit it (commas between),
-- n the link where it stands or stood last: the one that its header names and whose unfit seats u:<step> holds. fn:<step> = how many
-- attempts failed at each link by their seats' fault, with commas between. chained: sorted set, stages with a chain that stand ready
-- → when they were looked at last.

-- The links of a chain as {q, unfit}, and at which of them the stage stands.
local function parse_chain(chain)
  local at, rest = string.match(chain, '^(%d+) (.*)$')
  local links = {}
  for q, unfit in string.gmatch(rest, '([^ |]+)|(%S*)') do links[#links + 1] = {q = q, unfit = unfit} end
  return links, tonumber(at), rest
end

-- Whether a seat has budget left for a stage of a queue, of this cost, that was told to use so many tokens. What it may give in a minute
-- or at once is none: there it is only busy. Asked once in a script.
local afford_cache = {}
local function can_afford(seat, q, cost, told)
  if told == '' then told = nil end
  local id = seat .. ' ' .. q .. ' ' .. cost .. ' ' .. (told or '')
  if afford_cache[id] == nil then
    local f, calm = C('HMGET', K .. 'seat:' .. seat, 'own', 'grid', 'shared_budgets', 'prices', 'hourly_price', 'stage_ms'), {}
    for i, s in ipairs(budgets_of_seat(seat, f[1], f[2], f[3]) or {}) do
      calm[i] = {name = s.name, only = s.only, list = {}}
      for _, m in ipairs(s.list) do
        if m.resource ~= 'parallel' and (window_length(m.window) or FOREVER) > 60000 then table.insert(calm[i].list, m) end
      end
    end
    afford_cache[id] = not find_shortage(calm, q, tonumber(cost), estimate_use(told, q, f[4], f[5], f[6]))
  end
  return afford_cache[id]
end

-- Whether `good` holds for one of a queue's live seats that take work: of very many some are looked at before all of them.
local seats_cache, lent_cache = {}, {}
local function any_seat(q, good)
  local seats = seats_cache[q]
  if not seats then
    seats = C('SRANDMEMBER', K .. 'serving:' .. q, 64)
    seats_cache[q] = seats
  end
  for _, seat in ipairs(seats) do if good(seat) then return true end end
  if #seats ~= 64 then return false end
  seats_cache[q] = C('SMEMBERS', K .. 'serving:' .. q)
  for _, seat in ipairs(seats_cache[q]) do if good(seat) then return true end end
  return false
end

-- Which link a stage stands at: the first that a live seat could take it from now, were it not busy; where there is none, the first
-- that one could later (it has no budget now, or the stage is kept from it for a while); else the first. A link whose attempts are
-- used up counts no more. `x`: the seats that are kept from the stage, but for those that do not fit a link; `told`: its tokens.
-- Second: whether a live seat could take it there at some time.
local function choose_link(links, x, fails, cost, agent, team, told)
  local first, later
  local tries = string.gmatch(fails or '', '%d+')
  for i, link in ipairs(links) do
    if tonumber(tries() or 0) < MAX_ATTEMPTS then
      first = first or i
      local function fits(seat)
        if is_excluded(link.unfit, seat) then return false end
        if lent_cache[seat] == nil then lent_cache[seat] = C('HGET', K .. 'seat:' .. seat, 'lent_to') end
        if not is_lent_to(lent_cache[seat], agent, team) then return false end
        later = later or i
        return not is_excluded(x, seat) and can_afford(seat, link.q, cost, told)
      end
      if any_seat(link.q, fits) then return i, true end
    end
  end
  return later or first or #links, later ~= nil
end

-- The seats of `x` that are kept from a stage for another reason than that they do not fit the link where it stands. `failed`:
-- attempts of it have failed, so a seat that did not fit may also back off, at another link.
local function seats_kept_out(job, step, x, unfit, failed)
  if not unfit or unfit == '' then return x or '' end
  local kept = {}
  for seat in string.gmatch(x or '', '[^,]+') do
    local named = string.find(',' .. unfit .. ',', ',' .. seat .. ',', 1, true)
    if not named or failed and C('ZSCORE', K .. 'delays', 'backoff:' .. job .. ':' .. step .. ':' .. seat) then kept[#kept + 1] = seat end
  end
  return table.concat(kept, ',')
end

-- Where a stage with a chain is to stand: {n: which link, at: which it stands at, links, rest: the chain's text but for `at`, out: the
-- seats that are kept from it there}. `f`: its job's fields u:<step>, fn:<step> and tk:<step>.
local function choose_place(job, step, chain, cost, x, agent, team, f)
  local links, at, rest = parse_chain(chain)
  local out = seats_kept_out(job, step, x, f[1], f[2])
  local n = choose_link(links, out, f[2], cost, agent, team, f[3])
  local all = links[n].unfit
  for seat in string.gmatch(out, '[^,]+') do
    if not string.find(',' .. all .. ',', ',' .. seat .. ',', 1, true) then all = all == '' and seat or all .. ',' .. seat end
  end
  return {n = n, at = at, links = links, rest = rest, out = all}
end

-- Put a stage that becomes ready at the link where it is to stand, and note it for the sweep. Gives its header and which seats are
-- kept from it there, false where there are none.
local function place_step(job, step, chain, header, x, agent, team)
  local j = job_key(job)
  local f = C('HMGET', j, 'unfit:' .. step, 'chain_failures:' .. step, 'tokens:' .. step)
  local p = choose_place(job, step, chain, string.match(header, '^%S+ (%S+)'), x, agent, team, f)
  if p.n ~= p.at then
    local link = p.links[p.n]
    header = link.q .. string.sub(header, #p.links[p.at].q + 1)
    C('HSET', j, 'chain:' .. step, p.n .. ' ' .. p.rest, 'header:' .. step, header)
    if link.unfit ~= '' then C('HSET', j, 'unfit:' .. step, link.unfit) else C('HDEL', j, 'unfit:' .. step) end
  end
  if p.out == '' then C('HDEL', j, 'excluded:' .. step) elseif p.out ~= x then C('HSET', j, 'excluded:' .. step, p.out) end
  C('ZADD', K .. 'chained', NOW, job .. ':' .. step)
  C('PEXPIRE', K .. 'chained', KEEP)
  return header, p.out ~= '' and p.out
end

-- Whether a stage that stands ready would stand at another link now; nil where it stands nowhere. Of like stages asked once in a
-- script.
local misplaced_cache = {}
local function is_misplaced(job, step)
  local f = C('HMGET', job_key(job), 'pending:' .. step, 'chain:' .. step, 'excluded:' .. step, 'agent', 'charged_team', 'team', 'unfit:' .. step, 'chain_failures:' .. step,
    'tokens:' .. step)
  if not f[1] or not f[2] then return nil end
  local cost, team = string.match(f[1], '/(%d+)|'), f[5] or f[6]
  local like = table.concat({f[2], f[3] or '', f[4], team or '', f[7] or '', f[8] or '', f[9] or '', cost}, '\n')
  if misplaced_cache[like] == nil or f[7] and f[8] then  -- then its own back-offs count too
    local p = choose_place(job, step, f[2], cost, f[3], f[4], team, {f[7], f[8], f[9]})
    misplaced_cache[like] = p.n ~= p.at
  end
  return misplaced_cache[like]
end

-- Count an attempt that failed by its seat's fault at the link where the stage stands. Whether another may follow: at this link, or at
-- another whose attempts are not used up and that a live seat serves.
local function count_chain_failure(job, step, chain, fails, header)
  local links, at = parse_chain(chain)
  local counts = {}
  for n in string.gmatch(fails or '', '%d+') do counts[#counts + 1] = tonumber(n) end
  for i = 1, #links do counts[i] = (counts[i] or 0) + (i == at and 1 or 0) end
  C('HSET', job_key(job), 'chain_failures:' .. step, table.concat(counts, ','))
  if counts[at] < MAX_ATTEMPTS then return true end
  local f = C('HMGET', job_key(job), 'agent', 'charged_team', 'team')
  local _, anyone = choose_link(links, '', table.concat(counts, ','), string.match(header, '^%S+ (%S+)'), f[1], f[2] or f[3])
  return anyone
end
