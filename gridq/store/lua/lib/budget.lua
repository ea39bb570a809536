-- What a seat may give: money in a window, requests in a minute.
--
-- A seat may have two ledgers, and both bind: its machine's own (left budget period turn) and the one of the grid's quotas
-- file, the same fields with a g before them. left = budget - charged - held by its open leases; turn = when it refills.
-- rpm and grpm: requests a minute; rate:<seat> holds the times of the last claims, the latest first.

local function least(own, grid)  -- of two numbers or false; nil where neither is
  own, grid = tonumber(own), tonumber(grid)
  return own and grid and math.min(own, grid) or own or grid
end

local function refill(seat, g, budget, period)
  local holding, _, stop = 0, window(period or 'month')
  for _, lease in ipairs(C('HVALS', K .. 'held:' .. seat)) do
    holding = holding + tonumber(string.match(C('HGET', K .. 'who', lease) or '0', '(%S+)$'))
  end
  C('HSET', K .. 'seat:' .. seat, g .. 'left', whole(budget - holding), g .. 'turn', stop and whole(stop) or '')
  book(words_of('refill', '', '', '', seat, '', '', g == '' and 'own' or 'grid', whole(budget), '', '', '', ''))
end

-- Refill what the turn of a window refills; true where that was so. `turns`: the fields turn and gturn where the caller has read
-- them. A ledger that has not met a calendar yet is only told when its window ends.
local function turned(seat, turns)
  if not turns then turns = C('HMGET', K .. 'seat:' .. seat, 'turn', 'gturn') end
  local any = false
  for i, g in ipairs({'', 'g'}) do
    local at = tonumber(turns[i])
    if at and at <= NOW or turns[i] == '' then
      local f = C('HMGET', K .. 'seat:' .. seat, g .. 'budget', g .. 'period')
      local _, stop = window(f[2] or 'month')
      if not f[1] then C('HDEL', K .. 'seat:' .. seat, g .. 'turn')
      elseif at then refill(seat, g, f[1], f[2]); any = true
      elseif stop then C('HSET', K .. 'seat:' .. seat, g .. 'turn', whole(stop)) end
    end
  end
  return any
end

-- Give back; take where it is negative. What the turn of a window refills is refilled first, so that all of it counts in the window
-- in which it was settled. A lease that gives back its hold is still held meanwhile.
local function credit(seat, micro)
  if micro == 0 then return end
  local key = K .. 'seat:' .. seat
  local f = C('HMGET', key, 'left', 'gleft', 'turn', 'gturn')
  if (least(f[3], f[4]) or FOREVER) <= NOW then turned(seat, {f[3], f[4]}) end
  if f[1] then C('HINCRBY', key, 'left', micro) end
  if f[2] then C('HINCRBY', key, 'gleft', micro) end
end

-- Set a ledger's budget ('-': none). What is left outlives a restart; a changed budget changes it by the difference.
local function set_budget(seat, g, budget, period)
  local key = K .. 'seat:' .. seat
  if budget == '-' then return C('HDEL', key, g .. 'left', g .. 'budget', g .. 'period', g .. 'turn') end
  local f = C('HMGET', key, g .. 'budget', g .. 'left', g .. 'period')
  local _, stop = window(period)
  C('HSET', key, g .. 'budget', budget, g .. 'period', period)
  if not f[2] then return refill(seat, g, budget, period) end
  if f[1] then C('HINCRBY', key, g .. 'left', whole(budget - f[1])) end
  if f[3] ~= period then C('HSET', key, g .. 'turn', stop and whole(stop) or '') end
end

-- The grid's own limits of a seat, as the quotas file in force has them.
local function set_limits(seat)
  local budget, period, rpm = string.match(C('HGET', K .. 'limits', 's:' .. seat) or '- month -', '^(%S+) (%S+) (%S+)$')
  set_budget(seat, 'g', budget, period)
  if rpm == '-' then C('HDEL', K .. 'seat:' .. seat, 'grpm') else C('HSET', K .. 'seat:' .. seat, 'grpm', rpm) end
end

-- Whether the seat has made its `most` requests within the last minute. By the times themselves: never more than `most` in any
-- minute, wherever it begins.
local function spent_rate(seat, most)
  if most < 1 then return true end
  local age = NOW - tonumber(C('LINDEX', K .. 'rate:' .. seat, most - 1) or -FOREVER)
  return age >= 0 and age < 60000
end

local function count_request(seat, most)
  local key = K .. 'rate:' .. seat
  C('LPUSH', key, NOW)
  C('LTRIM', key, 0, most - 1)
  C('PEXPIRE', key, 120000)
end
