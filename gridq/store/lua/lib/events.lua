-- What Celery's monitors (Flower) are told, as task-* events: only while one listens.

-- The router in whose name jobs are shown, false where no monitor has the routers' events on. Asked once in a script.
local listener
local function monitoring_router()
  if listener == nil then listener = C('GET', K .. 'monitored_by') end
  return listener
end

local function publish(events)  -- JSON text of a list of events
  local t = C('HMGET', K .. 'wake_ups', 'events', 'topic')
  if t[2] then C('PUBLISH', t[2], (string.gsub(t[1], '@@EVENTS@@', function() return cjson.encode(events) end))) end
end

local function build_event(kind, uuid, hostname, fields)
  fields.type, fields.uuid, fields.hostname, fields.timestamp = 'task-' .. kind, uuid, hostname, NOW / 1000
  return fields
end

-- A job that begins: its name, its agent, how many stages it has (nil: nobody knows).
local function start_events(job, name, agent, stages)
  local shown = {name = name, args = agent, kwargs = stages and stages .. ' stages' or '', retries = 0, root_id = job}
  return {build_event('received', job, monitoring_router(), shown), build_event('started', job, monitoring_router(), {})}
end

-- A job's end. `since`: its admission, nil where it never left the inbox and so has not been told of.
local ENDS = {done = 'succeeded', cancelled = 'revoked'}
local function publish_end(job, name, agent, since, state, payload)
  if not monitoring_router() then return end
  local e = build_event(ENDS[state] or 'failed', job, monitoring_router(), {})
  if state == 'done' then e.runtime, e.result = (NOW - since) / 1000, ''
  else e.exception = string.match(payload, '"code": ?"([^"]*)"') or state end  -- not its message: a prompt may stand in it
  local list = since and {} or start_events(job, name, agent)
  list[#list + 1] = e
  publish(cjson.encode(list))
end

-- A stage that ran stops without an output: `kind` is retried, failed or revoked.
local function publish_stop(kind, uuid, seat, exception)
  if not monitoring_router() then return end
  local worker = C('HGET', K .. 'seat:' .. seat, 'worker') or seat
  publish(cjson.encode({build_event(kind, uuid, worker, {exception = exception, terminated = kind == 'revoked'})}))
end
