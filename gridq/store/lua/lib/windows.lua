-- The windows that limits count in.

local function int_text(n) return string.format('%.0f', n) end

-- The window (month, week or day) that the server's clock stands in: its start ('0' where no calendar is), its end in ms or nil.
local windows = {}
local function current_window(kind)
  local w = windows[kind]
  if not w then
    w = {start = '0'}
    for at in words(C('HGET', K .. 'calendar', kind)) do
      if tonumber(at) > NOW then w.stop = tonumber(at); break end
      w.start = at
    end
    windows[kind] = w
  end
  return w.start, w.stop
end

local function spent_key() return K .. 'spent:' .. current_window('month') end
