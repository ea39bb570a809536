-- Fall-back chains: a stage that asks for one capability, else for another.
--
-- Fields of its job: chain:<step> is 'n queue|unfit queue|unfit …': its links, each with the seats that do not fit it (comma separated);
-- n is the link where it waits or waited last, the one that its header names and whose unfit seats unfit:<step> holds.
-- chain_failures:<step> counts, for each link, the attempts that failed by their seats' fault (comma separated). The sorted set
-- `chained` has the waiting stages with a chain, by the time of their last check.

-- Return the links of a chain as {q, unfit}, at which of them the stage is, and the links as text.
local function parse_chain(chain)
  local at, rest = string.match(chain, '^(%d+) (.*)$')
  local links = {}
  for q, unfit in string.gmatch(rest, '([^ |]+)|(%S*)') do links[#links + 1] = {q = q, unfit = unfit} end
  return links, tonumber(at), rest
end

-- Return whether a seat has budget left for a stage of this queue, cost and token estimate. Limits of a minute or of parallel stages do
-- not count: there the seat is only busy. Computed once in a script.
local afford_cache, afford_count = {}, 0
local function can_afford(seat, q, cost, tokens)
  if not tokens or tokens == '' then tokens = false end
  local id = seat .. ' ' .. q .. ' ' .. cost .. ' ' .. (tokens or '')
  if afford_cache[id] == nil then
    afford_count = afford_count + 1
    local own, grid, shared, prices, hourly_price, stage_ms = unpack(C('HMGET', K .. 'seat:' .. seat,
      'own', 'grid', 'shared_budgets', 'prices', 'hourly_price', 'stage_ms'))
    local lasting = {prices = prices, hourly_price = hourly_price, stage_ms = stage_ms}
    for i, budget in ipairs(budgets_of_seat(seat, own, grid, shared) or {}) do
      lasting[i] = {name = budget.name, queues = budget.queues, meters = {}}
      for _, m in ipairs(budget.meters) do
        if m.resource ~= 'parallel' and (window_length(m.window) or FOREVER) > 60000 then table.insert(lasting[i].meters, m) end
      end
    end
    afford_cache[id] = not find_shortage(lasting, q, cost, tokens)
  end
  return afford_cache[id]
end

-- Return whether a seat is lent to an agent or its team, as is_lent_to does. Its record is read once in a script. A seat whose record cannot
-- be read is lent to nobody.
local NOBODY = '-'
local lent_cache = {}
local function is_seat_lent_to(seat, agent, team)
  if lent_cache[seat] == nil then
    local lent_to, failed = attempt('seats', seat, function() return C('HGET', K .. 'seat:' .. seat, 'lent_to') end)
    lent_cache[seat] = failed and NOBODY or lent_to
  end
  return is_lent_to(lent_cache[seat], agent, team)
end

-- Return whether `suits` holds for one of a queue's live seats that take work. If there are very many, some are tried before all. Once the
-- budgets of MAX_AFFORD have been read and none suits, the others count as if none did.
local seats_cache = {}
local function any_seat(q, suits)
  local serving, seats = 'serving:' .. q, seats_cache[q]
  local function is_suitable(seat)
    local yes = suits(seat)
    if lent_cache[seat] == NOBODY then C('SREM', K .. serving, seat) end
    return yes
  end
  if not seats then
    seats = C('SRANDMEMBER', K .. serving, 64)
    seats_cache[q] = seats
  end
  for _, seat in ipairs(seats) do if is_suitable(seat) then return true end end
  if #seats ~= 64 then return false end
  seats_cache[q] = C('SMEMBERS', K .. serving)
  local most = afford_count + MAX_AFFORD
  for _, seat in ipairs(seats_cache[q]) do
    if is_suitable(seat) then return true end
    if afford_count > most then return false end
  end
  return false
end

-- Return the link where a stage waits: the first from which a live seat could take it now if it were not busy; else the first from which
-- one could later (it has no budget now, or is excluded for a while); else the first. A link whose attempts are used up does not count.
-- `excluded`: the excluded seats, except those that do not fit a link. Second: when a live seat could take it, 'now' or 'later'; nil if none
-- could.
local function choose_link(links, excluded, failures, cost, agent, team, tokens)
  local first, later
  local counts = string.gmatch(failures or '', '%d+')
  for i, link in ipairs(links) do
    if tonumber(counts() or 0) < MAX_ATTEMPTS then
      first = first or i
      local function suits(seat)
        if is_excluded(link.unfit, seat) or not is_seat_lent_to(seat, agent, team) then return false end
        later = later or i
        return not is_excluded(excluded, seat) and can_afford(seat, link.q, cost, tokens)
      end
      if any_seat(link.q, suits) then return i, 'now' end
    end
  end
  return later or first or #links, later and 'later'
end

-- Return those excluded seats of a stage that are excluded for another reason than not fitting its link. `failed`: attempts have failed,
-- so a seat that does not fit may also back off, at another link.
local function seats_kept_out(job, step, excluded, unfit, failed)
  if not unfit or unfit == '' then return excluded or '' end
  local kept = {}
  for seat in string.gmatch(excluded or '', '[^,]+') do
    local is_unfit = string.find(',' .. unfit .. ',', ',' .. seat .. ',', 1, true)
    if not is_unfit or failed and C('ZSCORE', K .. 'delays', 'backoff:' .. job .. ':' .. step .. ':' .. seat) then
      kept[#kept + 1] = seat
    end
  end
  return table.concat(kept, ',')
end

-- Return where a stage with a chain should wait: {n: which link, at: where it is, links, rest: the links as text, excluded: the excluded
-- seats there}. `unfit`, `failures` and `tokens`: its fields unfit:, chain_failures: and tokens:<step>.
local function choose_place(job, step, chain, cost, excluded, agent, team, unfit, failures, tokens)
  local links, at, rest = parse_chain(chain)
  local kept_out = seats_kept_out(job, step, excluded, unfit, failures)
  local n = choose_link(links, kept_out, failures, cost, agent, team, tokens)
  local all = links[n].unfit
  for seat in string.gmatch(kept_out, '[^,]+') do
    if not string.find(',' .. all .. ',', ',' .. seat .. ',', 1, true) then all = all == '' and seat or all .. ',' .. seat end
  end
  return {n = n, at = at, links = links, rest = rest, excluded = all}
end

-- Put a stage that becomes ready at its link, and note it for the sweep. Return its header and its excluded seats there, false for none.
local function place_step(job, step, chain, header, excluded, agent, team)
  local j = job_key(job)
  local unfit, failures, tokens = unpack(C('HMGET', j, 'unfit:' .. step, 'chain_failures:' .. step, 'tokens:' .. step))
  local cost = string.match(header, '^%S+ (%S+)')
  local place = choose_place(job, step, chain, cost, excluded, agent, team, unfit, failures, tokens)
  if place.n ~= place.at then
    local link = place.links[place.n]
    header = link.q .. string.sub(header, #place.links[place.at].q + 1)
    C('HSET', j, 'chain:' .. step, place.n .. ' ' .. place.rest, 'header:' .. step, header)
    if link.unfit ~= '' then C('HSET', j, 'unfit:' .. step, link.unfit) else C('HDEL', j, 'unfit:' .. step) end
  end
  if place.excluded == '' then C('HDEL', j, 'excluded:' .. step)
  elseif place.excluded ~= excluded then C('HSET', j, 'excluded:' .. step, place.excluded) end
  C('ZADD', K .. 'chained', NOW, job .. ':' .. step)
  C('PEXPIRE', K .. 'chained', KEEP)
  return header, place.excluded ~= '' and place.excluded
end

-- Return whether a waiting stage should wait at another link now; nil if it does not wait. Computed once for like stages in a script.
local misplaced_cache = {}
local function is_misplaced(job, step)
  local pending, chain, excluded, agent, team, unfit, failures, tokens = unpack(C('HMGET', job_key(job), 'pending:' .. step,
    'chain:' .. step, 'excluded:' .. step, 'agent', 'team', 'unfit:' .. step, 'chain_failures:' .. step, 'tokens:' .. step))
  if not pending or not chain then return nil end
  local cost = string.match(pending, '/(%d+)|')
  local like = table.concat({chain, excluded or '', agent, team or '', unfit or '', failures or '', tokens or '', cost}, '\n')
  if misplaced_cache[like] == nil or unfit and failures then  -- with both, its own back-offs count too
    local place = choose_place(job, step, chain, cost, excluded, agent, team, unfit, failures, tokens)
    misplaced_cache[like] = place.n ~= place.at
  end
  return misplaced_cache[like]
end

-- Add failed attempts to those of a link. Return the new text of chain_failures:<step>, and the link's attempts.
local function add_failures(failures, links, at, more)
  local counts = {}
  for n in string.gmatch(failures or '', '%d+') do counts[#counts + 1] = tonumber(n) end
  for i = 1, #links do counts[i] = (counts[i] or 0) + (i == at and more or 0) end
  return table.concat(counts, ','), counts[at]
end

-- Count an attempt that failed by its seat's fault at the link where the stage is. Return whether another may follow: at this link, or at
-- another whose attempts are not used up and that a live seat serves.
local function count_chain_failure(job, step, chain, failures, header)
  local links, at = parse_chain(chain)
  local counts, n = add_failures(failures, links, at, 1)
  C('HSET', job_key(job), 'chain_failures:' .. step, counts)
  if n < MAX_ATTEMPTS then return true end
  local agent, team = unpack(C('HMGET', job_key(job), 'agent', 'team'))
  local _, when = choose_link(links, '', counts, string.match(header, '^%S+ (%S+)'), agent, team)
  return when ~= nil
end

-- Use up the link where the stage is, if `seat` does not have the link's model at hand (it is being downloaded, or has no memory), no other
-- seat could take the stage now, and this one could at another link. Return whether that is so.
local function leave_link(job, step, chain, failures, header, seat)
  local links, at = parse_chain(chain)
  local agent, team, excluded, unfit, tokens = unpack(C('HMGET', job_key(job), 'agent', 'team', 'excluded:' .. step, 'unfit:' .. step,
    'tokens:' .. step))
  local kept_out = seats_kept_out(job, step, excluded, unfit, failures)
  local function can_start(kept_out_now, counts)
    local _, when = choose_link(links, kept_out_now, counts, string.match(header, '^%S+ (%S+)'), agent, team, tokens)
    return when == 'now'
  end
  if can_start(kept_out == '' and seat or kept_out .. ',' .. seat, failures) then return false end
  local counts = add_failures(failures, links, at, MAX_ATTEMPTS)
  if not can_start(kept_out, counts) then return false end
  C('HSET', job_key(job), 'chain_failures:' .. step, counts)
  return true
end
