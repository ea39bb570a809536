-- The ledger: the stream `ledger` has an entry for everything that moves a counter of money or jobs, and for each attempt that
-- ended. The script that moves a counter writes it. Entries never change; the sweep trims those older than LEDGER ms.
-- gridq/limits/ledger.py reads them.
--
-- An entry has one field, e: words with a space between, empty if there is nothing to say. Separate fields would cost five times
-- as much memory. In order:
--   what it is, job, step, attempt, seat, agent, team ('-' none, '' if no limits count), queue,
--   micro-dollars ('' without a price), tokens in, tokens out, ms since the claim,
--   start of the month in which agent and team were charged ('' if they were not)
-- and for each attempt two or three words more: the shared budgets that it was charged to ('-' none, '' if its seat had no budget when it
-- was claimed), its number of requests, and, if there are any, the ms for which it used a device.
--
-- What it is:
--   done       recorded, charged to seat and agent
--   failed | seat | died | lost | back | cancelled    without a result, charged to the seat alone
--   late       reported after its end, charged to the seat alone
--   job        a job counts for its agent
--   refill     a meter's window begins with nothing used: the queue is own/<resource>/<window> or grid/… of that seat, or
--              <resource>/<window> of the shared budget in the agent's place; micro-dollars is its limit
--   begin      the first entry
--   carried    what an agent or team (a:<agent> | t:<team>, in the agent's place) had used before; the queue is money | jobs

local function ledger_entry(what, job, step, attempt, seat, agent, team, queue, micro, tokens_in, tokens_out, ms, month)
  return what .. ' ' .. job .. ' ' .. step .. ' ' .. attempt .. ' ' .. seat .. ' ' .. agent .. ' ' .. team .. ' ' .. queue .. ' ' .. micro
    .. ' ' .. tokens_in .. ' ' .. tokens_out .. ' ' .. ms .. ' ' .. month
end

-- Append an entry. One command, except for the very first entry. To be called before the counters of agents and teams move, and
-- after those of seats.
local function append_ledger(entry)
  local key = K .. 'ledger'
  if C('XADD', key, 'NOMKSTREAM', '*', 'e', entry) then return end
  C('XADD', key, '*', 'e', ledger_entry('begin', '', '', '', '', '', '', '', '', '', '', '', ''))
  local used, month = C('HGETALL', spent_key()), current_window('month')
  for i = 1, #used, 2 do
    local what, account = string.match(used[i], '^(%S+) (.*)$')
    C('XADD', key, '*', 'e', ledger_entry('carried', '', '', '', '', account, '', what, used[i + 1], '', '', '', month))
  end
  C('XADD', key, '*', 'e', entry)
  C('PEXPIRE', key, LEDGER)
end
