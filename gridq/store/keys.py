"""Every key gridq keeps in Redis, with its life. Queues themselves (`<prefix>llm:claude`) are Celery's.

gridq's own keys stand under `<prefix>.`: no kind of capability begins with a dot, so they never meet a queue.

| key | holds | lives |
|---|---|---|
| `sub:<job>` | hash: a submitted job that no router has admitted | deadline + 1 h |
| `job:<job>` | hash: plan, counters, values of a running job | to its end, at most deadline + 1 h |
| `val:<job>:…` | a value over 64 KB | as its job; the answer as the result |
| `vals:<job>` | set: the job's long values | as its job |
| `rows:<job>` | list: one line for each recorded stage | as its job, then as the result |
| `str:<job>` | stream: pieces of the answers | as its job, then as the result |
| `about:<job>` | hash: an ended job's name, agent, times, state | as the result |
| `fin:<job>` | list of one: final state and answer or error | the result's TTL (default 1 h) |
| `idem:<agent>:…` | an idempotency key (hashed): its job, the body's digest | as its job, then the result |
| `cls:…` `rdy:…` `w:…` | a capability's pending set | empty themselves; else the longest deadline + 1 h |
| `chained` | sorted set: stages with a fall-back chain that stand ready, when each was looked at | the same |
| `vt:<kind>` | hash: virtual time of each agent | the same |
| `seat:<seat>` | hash: incarnation, slots, budgets, queues | 40 days after it was last live (routers: 1 h) |
| `held:<seat>` | hash: slot → lease | empties itself; at most as the pending sets |
| `late:<lease>` | a lease that ended uncompleted: seat, charge, agent, queue | as its job, at least 1 h |
| `worker:<id>` | what a worker that is asked over HTTP said as it enrolled | 3 of its heartbeats |
| `workers` | sorted set: these workers by the end of that | as the last of them |
| `drain:<seat>` | since when an operator lets the seat take nothing | 40 days after the seat was last live |
| `ad:<seat>` | what the seat's worker says of itself | 3 heartbeats |
| `stages:<machine>` | the user's stages of that machine | 3 heartbeats |
| `sessions:<agent>` | hash: session → the seat that served it last | 10 min after the last of them |
| `rank:<queue>` | sorted set: seats by preference, `*`: new ones | 1 min after the governor's last word |
| `watched` | the router that says that a monitor of Celery's listens | 5 s |
| `spent:<start>` | hash: what agents and teams used in the month that began then | that month + 2 days |
| `park:<agent>` | set: where stages of an agent over its money stand aside | the longest deadline + 1 h |
| `ledger` | stream: what was settled, charged and counted | GRIDQ_LEDGER_DAYS after the last sweep |
| `rate:<seat>` | list: the times of a seat's last claims | 2 min |
| `calls:<key>` | sorted set: requests by an API key with a limit, by their time | 1 min |
| `opened:<key>` | sorted set: its open requests, until when each holds its place | 30 s after the last word |
| `token:<id>` | hash: a join token: its secret hashed, how often it may be used | as the token |
| `tokens` | sorted set: join tokens by expiry | as the last of them |
| `full` | bytes used and maxmemory, while the server's memory is nearly used up | 5 s |
| `upgrade` | since when a program of a newer schema asks to start, when it asked last | two leases |
| `untold` | list: attempts lost with a worker that left, for a sweep to tell of | 1 min |
| `swept` `losses` | the last sweep; counters | the longest deadline + 1 h |

The permanent ones are few, each one key for the whole grid or one for each capability; all but `wake-ups`,
`wake_up_number`, `calendar`, `schema` and what the operator sets (`limits`, its `meters`, `keys`) empty themselves.
"""

from __future__ import annotations

PERMANENT = (
    "leases",  # sorted set: open leases by expiry
    "who",  # hash: lease → seat, slot, what it holds of which budgets
    "seats",  # sorted set: live seats by expiry
    "concurrency",  # hash: capability → slots that listen
    "lends",  # hash: live seats that are lent to some alone → whom
    "serve:*",  # set: live seats of a capability
    "warm:*",  # sorted set: live seats that have a capability's model loaded
    "idle:*",  # sorted set: seats with a free slot, best first
    "queues",  # set: capabilities with pending stages or wake-ups
    "deadlines",  # sorted set: jobs by deadline
    "jobs",  # sorted set: jobs by submission, until their result expires
    "past",  # sorted set: ended jobs by the end of their result's life
    "inbox",  # sorted set: jobs to be admitted
    "quarantine",  # sorted set: stages that killed their runners, until when an operator may act
    "delays",  # sorted set: Retry delays and back-offs by due time
    "answers",  # sorted set: ended jobs whose Celery result is not written yet
    "holds",  # hash: running job → its agent, team and what it still holds of their money, tokens
    "promised",  # hash: agent or team → the sum of its holds
    "parked",  # hash: agents over their money that have stages standing aside
    "limits",  # hash: the limits in force, by agent, team and seat
    "meters",  # hash: what of them owners, families, the grid, agents and teams have used and hold
    "calendar",  # hash: when windows turn
    "keys",  # hash: API keys by id, their secrets hashed
    "schema",  # the number of the data's form: who of two versions may work here
    "wake_ups",  # hash: the message templates
    "wake_up_number",  # counter: the wake-ups' ids
)
"""Own keys without a TTL, as glob patterns after `<prefix>.`."""

CELERY_PERMANENT = ("_kombu.binding*",)
"""Keys without a TTL that kombu keeps, as glob patterns after `<prefix>`: its tables of bindings, for remote
control and events alone, and their deadlines; a handful in all.
"""


class Keys:
    """The names of gridq's keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.own = prefix + "."

    def __call__(self, *parts: str) -> str:
        return self.own + ":".join(parts)

    def queue(self, name: str) -> str:
        return self.prefix + name
