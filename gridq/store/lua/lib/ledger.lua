-- The ledger: an entry in the stream `ledger` for whatever moves a counter of money or jobs, and for each attempt that has ended,
-- written by the script that moves it. Nothing in it is ever changed; the sweep trims what is older than LEDGER ms.
-- gridq/limits/ledger.py reads it, and docs/reference/ledger.md says what for.
--
-- An entry has one field, e: words with a space between them, empty where there is nothing to say. More fields would cost the server
-- five times as much. They are, in this order: what it is; j job, n step, a attempt, s seat, w agent, t team ('-' none, '' where no limits
-- count), q queue, u micro-dollars ('' where it has no price, or none is known), i and x tokens in and out, d ms since the claim, m
-- start of the month in which agent and team were charged ('' where they were not). Behind them of each attempt: the names of the
-- shared sheets that it was charged to ('-' none, '' where nothing bound its seat when it was claimed), and how many requests it is.
-- What it is: done: recorded, charged to the seat and the agent. failed | seat | died | lost | back | cancelled: it came to nothing,
-- and late: what is heard of one only afterwards; charged to the seat alone. job: it counts for its agent. refill: a meter's window
-- begins, with nothing used: q is own/<thing>/<window> or grid/… of the seat s, or <thing>/<window> of the shared sheet w; u its limit.
-- begin: the first entry; carried: what w (a:<agent> | t:<team>) had used before of q (money | jobs).

local function ledger_entry(what, j, n, a, s, w, t, q, u, i, x, d, m)
  return what .. ' ' .. j .. ' ' .. n .. ' ' .. a .. ' ' .. s .. ' ' .. w .. ' ' .. t .. ' ' .. q .. ' ' .. u .. ' ' .. i .. ' ' .. x
    .. ' ' .. d .. ' ' .. m
end

-- Write an entry, as words_of puts it together. One command, but for the very first entry. To be called before the counters of
-- agents and teams move, and after those of seats.
local function append_ledger(entry)
  local key = K .. 'ledger'
  if C('XADD', key, 'NOMKSTREAM', '*', 'e', entry) then return end
  C('XADD', key, '*', 'e', ledger_entry('begin', '', '', '', '', '', '', '', '', '', '', '', ''))
  local used, month = C('HGETALL', spent_key()), current_window('month')
  for i = 1, #used, 2 do
    local what, who = string.match(used[i], '^(%S+) (.*)$')
    C('XADD', key, '*', 'e', ledger_entry('carried', '', '', '', '', who, '', what, used[i + 1], '', '', '', month))
  end
  C('XADD', key, '*', 'e', entry)
  C('PEXPIRE', key, LEDGER)
end
