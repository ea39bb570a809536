-- The calendar windows that limits count in.

local function int_text(n) return string.format('%.0f', n) end

-- Return the start of the current month, week or day ('0' without a calendar) and its end in ms or nil.
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
