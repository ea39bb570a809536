"""Every key that gridq keeps in Redis, and how long it lives.

gridq's own keys begin with `<prefix>.`. No capability begins with a dot, so they never collide with the
queues (`<prefix>llm:claude`), which belong to Celery.

Jobs:

| key | holds | lives until |
|---|---|---|
| `submitted:<job>` | hash: a job in the inbox that no router has admitted yet | the deadline + 1 h |
| `job:<job>` | hash: the plan and the state of a running job | the job ends, at most its deadline + 1 h |
| `plan:<name>` | hash: a part of a large plan, before its job is admitted | 10 min |
| `work:<job>` | list: what is left to do for a large job (lua/lib/steps.lua) | the same as `job:` |
| `remains:<job>` | hash: what was `job:<job>`, until the steps of an ended job are stopped | the same |
| `value:<job>:…` | a value of more than 64 KB | the job ends; the answer as long as the result |
| `values:<job>` | set: the names of the job's long values | the job ends |
| `rows:<job>` | list: one row for each attempt that was recorded | the result expires |
| `response:<job>` | a background response as queued, without output | it is done; else its result expires |
| `stream:<job>` | stream: pieces of the answers, and the end | the result expires |
| `summary:<job>` | hash: name, agent, times and state of an ended job | the result expires |
| `result:<job>` | list of one: the final state and the answer or error | the result's TTL (default 1 h) |
| `idempotency:<agent>:<digest>` | the job of an idempotency key, and its body's digest | the result expires |
| `closed_lease:<lease>` | a lease without an output: its seat, charge, agent, queue | the job's keys expire |

Queues (`<class>` is a priority, a cost and the excluded seats; store/lua/lib/waiting_stages.lua):

| key | holds | lives until |
|---|---|---|
| `classes:<queue>` | hash: class → how many stages wait in it | it is empty (†) |
| `ready:<queue>:<class>` | sorted set: agents with waiting stages, by virtual time | the same |
| `waiting:<queue>:<class>:<agent>` | sorted set: waiting stages, by the time they became ready | the same |
| `parked:<agent>` | set: queues and classes where stages of an agent over its limits wait | the same |
| `limits_work` | list: what is left to do after a change of limits (lua/lib/parked_agents.lua) | the same |
| `parked_mark` | windows and limits at the last check of the parked agents | the same |
| `chained` | sorted set: waiting stages with fall-backs, by the time of their last check | the same |
| `virtual_time:<kind>` | hash: virtual time of each agent, for fair sharing | the same |
| `sessions:<agent>` | hash: session → the seat that served it last | 10 min after its last use |
| `rank:<queue>` | sorted set: seats by preference; `*`: new seats | 1 min after the last ranking |

Seats and workers:

| key | holds | lives until |
|---|---|---|
| `seat:<seat>` | hash: the seat's record | 40 days after the seat was live (routers: 1 h) |
| `lost_slots:<seat>:…` | hash: `slots:` of a seat that has left | all these leases are lost (†) |
| `slots:<seat>` | hash: slot → the lease that occupies it | it is empty (†) |
| `claim_times:<seat>` | list: the times of the seat's last claims | 2 min |
| `drain:<seat>` | the time since which an operator drains the seat | 40 days after the seat was live |
| `model_commands:<seat>` | list: commands to load or unload models, which its worker reads | 1 min |
| `model_command:<id>` | how far such a command is | 10 min |
| `advertisement:<seat>` | what the seat's worker says about itself | 3 heartbeats |
| `worker:<id>` | what a worker that is reached over HTTP said when it enrolled | 3 of its heartbeats |
| `workers` | sorted set: these workers, by the time their entry expires | the last of them expires |
| `unavailable_seats` | hash: live seats that take no work, all or in part | the longest deadline + 1 h |
| `gone_seats` | sorted set: seats whose worker has ended, by the time | 10 min after the last |
| `served_queues` | sorted set: queues, by the second when their last seat left or paused | 30 days later |
| `stages:<machine>` | the user's stages on that machine | 3 heartbeats |
| `models:<machine>` | the models that the machine shares, its mirror's address and secret | 3 heartbeats |
| `token:<id>` | hash: a join token: its hashed secret, how often it may be used | the token expires |
| `tokens` | sorted set: join tokens by expiry | the last token expires |

Limits:

| key | holds | lives until |
|---|---|---|
| `spent:<start>` | hash: what agents and teams used in the month from `<start>` | the month's end + 2 days |
| `ledger` | stream: everything that was charged, counted or reset | GRIDQ_LEDGER_DAYS after the last sweep |
| `request_times:<key>` | sorted set: requests of a limited API key, by time | 1 min |
| `open_requests:<key>` | sorted set: open requests, by the time they lapse | 30 s after the last renewal |

The grid:

| key | holds | lives until |
|---|---|---|
| `monitored_by` | the router that announced that a Celery monitor listens | 5 s |
| `memory_full` | bytes used and maxmemory, while the server's memory is nearly used up | 5 s |
| `upgrade` | since when a program of a newer schema asks to start, and when it last asked | two leases |
| `unreported_losses` | list: attempts that a seat lost when it left, for the next sweep to report | 1 min |
| `unreported_damage` | list: damaged entries, for the next sweep to report | the longest deadline + 1 h |
| `last_sweep` | the time of the last sweep | the longest deadline + 1 h |
| `attempts_lost` | hash: `count` of all lost attempts | the longest deadline + 1 h |

(†) At most the longest deadline + 1 h. The fields of jobs' and seats' records: gridq/store/record_fields.py.

`PERMANENT` lists the keys without a TTL. There are few: one for the whole grid, or one for each capability.
They empty themselves, except `wake_ups`, `wake_up_number`, `calendar`, `schema` and what the operator sets
(`limits` with its `meters`, `api_keys`).
"""

from __future__ import annotations

PERMANENT = (
    "leases",  # sorted set: open leases by expiry
    "lease_info",  # hash: lease → seat, slot and what it reserves in which budgets
    "seats",  # sorted set: live seats by expiry
    "concurrency",  # hash: capability → slots of the live seats that take work
    "lent_seats",  # hash: live seats that are lent to some agents only → to whom
    "serving:*",  # set: live seats of a capability that take work
    "warm:*",  # sorted set: live seats that have a capability's model loaded
    "idle:*",  # sorted set: seats with a free slot, the best first
    "queues",  # set: capabilities with waiting stages or wake-ups
    "deadlines",  # sorted set: jobs by deadline
    "long_work",  # sorted set: what is left of very large jobs, of leases of seats that left, of `limits:`
    "jobs",  # sorted set: jobs by submission, until their result expires
    "ended_jobs",  # sorted set: ended jobs by the expiry of their result
    "inbox",  # sorted set: jobs to be admitted, by the time of their next message to a router
    "quarantine",  # sorted set: stages that killed their runners, by the end of their quarantine
    "delays",  # sorted set: what is due later (retries, back-offs, queue timeouts), by time
    "answers",  # sorted set: ended jobs whose Celery result is not written yet
    "reservations",  # hash: running job → agent, team and the money and tokens that it still reserves
    "reserved",  # hash: agent or team → the sum of its jobs' reservations
    "parked_agents",  # hash: agents over their limits that have waiting stages → team
    "limits",  # hash: the limits in force, by agent, team, seat and queue
    "meters",  # hash: the shared budgets of owners, families, the grid, agents and teams
    "calendar",  # hash: when each window resets
    "api_keys",  # hash: API keys by id, their secrets hashed
    "schema",  # the number of the data's schema: which versions may work here
    "wake_ups",  # hash: the message templates
    "wake_up_number",  # counter: makes the ids of wake-ups
)
"""gridq's keys without a TTL, as glob patterns after `<prefix>.`."""

CELERY_PERMANENT = ("_kombu.binding*",)
"""kombu's keys without a TTL, as patterns after `<prefix>`: tables for remote control and events."""


class Keys:
    """The names of gridq's keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.own = prefix + "."

    def __call__(self, *parts: str) -> str:
        return self.own + ":".join(parts)

    def queue(self, name: str) -> str:
        return self.prefix + name
