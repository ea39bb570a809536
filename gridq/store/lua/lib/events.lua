-- Events (task-*) for Celery's monitors such as Flower, sent only while one listens.

-- Return the router in whose name jobs are shown, false if no monitor listens to routers. Read once in a script.
local listening_router
local function monitoring_router()
  if listening_router == nil then listening_router = C('GET', K .. 'monitored_by') end
  return listening_router
end

local function publish(events)  -- a JSON list of events
  local template, topic = unpack(C('HMGET', K .. 'wake_ups', 'events', 'topic'))
  if topic then C('PUBLISH', topic, (string.gsub(template, '@@EVENTS@@', function() return cjson.encode(events) end))) end
end

local function build_event(kind, uuid, hostname, fields)
  fields.type, fields.uuid, fields.hostname, fields.timestamp = 'task-' .. kind, uuid, hostname, NOW / 1000
  return fields
end

-- Build the events of a job that begins. `stages`: its number of stages, nil if not known.
local function start_events(job, name, agent, stages)
  local shown = {name = name, args = agent, kwargs = stages and stages .. ' stages' or '', retries = 0, root_id = job}
  return {build_event('received', job, monitoring_router(), shown), build_event('started', job, monitoring_router(), {})}
end

-- Publish a job's end. `since`: its admission, nil if it never left the inbox, so that its start was not published.
local ENDS = {done = 'succeeded', cancelled = 'revoked'}
local function publish_end(job, name, agent, since, state, payload)
  if not monitoring_router() then return end
  local e = build_event(ENDS[state] or 'failed', job, monitoring_router(), {})
  if state == 'done' then e.runtime, e.result = (NOW - since) / 1000, ''
  else e.exception = string.match(payload, '"code": ?"([^"]*)"') or state end  -- not the message: it may contain a prompt
  local list = since and {} or start_events(job, name, agent)
  list[#list + 1] = e
  publish(cjson.encode(list))
end

-- Publish that a running stage stops without an output. `kind` is retried, failed or revoked.
local function publish_stop(kind, uuid, seat, exception)
  if not monitoring_router() then return end
  local worker = C('HGET', K .. 'seat:' .. seat, 'worker') or seat
  publish(cjson.encode({build_event(kind, uuid, worker, {exception = exception, terminated = kind == 'revoked'})}))
end
