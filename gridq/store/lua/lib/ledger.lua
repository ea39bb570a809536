-- The ledger: an entry in the stream `ledger` for whatever moves a counter of money or jobs, and for each attempt that has ended,
-- written by the script that moves it. Nothing in it is ever changed; the sweep trims what is older than LEDGER ms.
-- gridq/entries.py reads it, and docs/ledger.md says what for.
--
-- Every entry has the same fields, so that the server keeps their names once for many: o what it is, j job, n step, a attempt,
-- s seat, w agent, t team ('-' none, '' where no limits count), q queue, u micro-dollars ('' where it has no price, or none is
-- known), i and x tokens in and out, d ms since the claim, m start of the month in which agent and team were charged ('' where
-- they were not).
-- o = done: recorded, charged to the seat and the agent. failed | seat | died | lost | back | cancelled: it came to nothing, and
-- late: what is heard of one only afterwards; charged to the seat alone. job: it counts for its agent. refill: of its ledger q
-- (own | grid) a seat has the budget u again, less what is held. begin: the first entry; carried: what w (a:<agent> | t:<team>)
-- had used before of q (money | jobs).

local FIELDS = {'o', 'j', 'n', 'a', 's', 'w', 't', 'q', 'u', 'i', 'x', 'd', 'm'}

local function fields_of(what, f)
  local list = {}
  f.o = what
  for i, name in ipairs(FIELDS) do list[2 * i - 1], list[2 * i] = name, f[name] or '' end
  return list
end

-- One command, but for the very first entry. To be called before the counters of agents and teams move, and after those of seats.
local function book(what, f)
  local key, list = K .. 'ledger', fields_of(what, f)
  if C('XADD', key, 'NOMKSTREAM', '*', unpack(list)) then return end
  C('XADD', key, '*', unpack(fields_of('begin', {})))
  local used, month = C('HGETALL', spent()), window('month')
  for i = 1, #used, 2 do
    local what_of, who = string.match(used[i], '^(%S+) (.*)$')
    C('XADD', key, '*', unpack(fields_of('carried', {w = who, q = what_of, u = used[i + 1], m = month})))
  end
  C('XADD', key, '*', unpack(list))
  C('PEXPIRE', key, LEDGER)
end
