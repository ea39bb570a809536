"""The fields of the records that jobs and seats have in Redis, by the names that Lua and Python use.

Times are in ms by the server's clock, money is in micro-dollars.
"""

from __future__ import annotations

JOB_FIELDS = {
    "agent": "the agent that submitted it",
    "answer": "the step whose output is the job's answer",
    "body_digest": "digest of the request body, if its submitter chose its id or gave an idempotency key",
    "budget": "what its stages may still cost, if its submitter set a budget",
    "celery": "1 if Celery waits for the answer",
    "charged_team": "the team whose limits it was admitted under, `-` for none; only if there were limits",
    "client_waits": "1 if a client waits for the answer on an open connection",
    "deadline": "when it expires",
    "delays": "its entries in `delays`, space separated; the first of very many",
    "idempotency_key": "`<agent>:<digest of the key>`",
    "input": "the input as JSON, or `@name` of a long value",
    "name": "its name",
    "preferred_seat": "the seat that is woken first for its stages",
    "priority": "0 interactive, 1 batch",
    "queue_timeout": "how long a stage may wait for a seat",
    "ready": "the steps that are ready at once, until all of very many have been made ready",
    "result_ttl": "how long its result is kept",
    "session": "its session",
    "steps": "number of its steps",
    "stream": "1: pieces and the end are streamed; e: only the end",
    "submitted_at": "when its plan was written",
    "team": "the team of its agent, by the limits or the API key",
    "unfinished": "how many steps are neither done nor skipped",
    "working": "`-` and the Retry scopes that are being restarted, while something is left in `work:<job>`",
    "wait_for_seat": "1 if its stages wait while all seats that could run them are unavailable",
}
"""Fields of `job:<job>` that belong to the whole job."""

STEP_FIELDS = {
    "attempts": "how often it was claimed",
    "chain": "its fall-backs: `n queue|unfit queue|unfit …` (lua/lib/fallbacks.lua)",
    "chain_failures": "failed attempts at each link of its chain, comma separated",
    "deaths": "attempts that killed the process that ran them",
    "dependencies": "how many steps it still waits for",
    "done": "the fence (epoch:attempt:nonce) of the attempt whose output was recorded",
    "epoch": "how often a Retry has restarted it",
    "excluded": "seats that may not take it now, comma separated; `=seat` excludes all others",
    "failures": "attempts that failed by their seats' fault",
    "header": "`queue cost scope dependents refs input path`",
    "lease": "the fence of the attempt that counts",
    "losses": "attempts that were lost with their worker",
    "output": "its output as JSON, or `@name` of a long value",
    "pending": "`queue class` where it waits",
    "pieces": "how many pieces of its answer the attempt has streamed",
    "quarantine": "the end of its quarantine and the error's record",
    "ready_at": "when it became ready first",
    "released_by": "the operator who released it from quarantine",
    "skipped": "1 if it is in an arm that was not taken",
    "spec": "the step as JSON",
    "started_at": "when it was claimed last",
    "tokens": "its estimate: `in out`, and its own timeout if it has one",
    "unfit": "seats that can never take it, comma separated",
}
"""Fields `<field>:<step>` of `job:<job>`. All counters are those since a Retry restarted the step last."""

SCOPE_FIELDS = {
    "scope": "`parent max_attempts delay_ms step=dependencies …;nested scopes`",
    "scope_epoch": "how often the scope has restarted",
    "tries": "how often it has failed",
}
"""Fields `<field>:<number>` of `job:<job>`, for each Retry."""

ARM_FIELD = "arm"
"""Fields `arm:<step>:1` and `arm:<step>:0` of `job:<job>`: the steps of each arm of a gate."""

SUBMITTED_FIELDS = {
    **{
        name: JOB_FIELDS[name]
        for name in (
            "agent", "body_digest", "celery", "deadline", "idempotency_key", "input", "queue_timeout",
            "result_ttl", "stream",
        )
    },
    "api_key": "the id of its API key",
    "graph": "the graph as JSON",
    "options": "the job options as JSON",
    "submitted_at": "when it was submitted",
}  # fmt: skip
"""Fields of `submitted:<job>`."""

SUMMARY_FIELDS = {
    **{
        name: JOB_FIELDS[name]
        for name in (
            "agent", "body_digest", "deadline", "idempotency_key", "name", "priority", "steps",
            "stream", "submitted_at", "unfinished",
        )
    },
    "ended_at": "when it ended",
    "state": "its final state",
}  # fmt: skip
"""Fields of `summary:<job>`."""

SEAT_FIELDS = {
    "concurrency": "number of its slots",
    "draining": "1: its worker takes nothing for now; op: an operator drains it",
    "families": "model families by queue: `<queue>=<family>,<family> …`",
    "grid": "its budget by the quotas file, as text (lua/lib/meters.lua)",
    "host": "the machine and its boot that its worker runs on",
    "hourly_price": "money for an hour of a slot, and the timeout of a stage that has none",
    "incarnation": "the start of its worker that is live",
    "keeps_prompts": "1 if it keeps prompts, so that one it has seen takes less time",
    "lent_to": "the only ones that may use it: `a:<agent>` and `t:<team>`, space separated",
    "own": "its budget by its machine, as text",
    "owner": "its owner",
    "prices": "money for a million tokens in and out, of its dearest model",
    "queues": "queues that it serves, space separated",
    "quota_requests_per_minute": "limit by the quotas file",
    "record_ttl": "how long the record lives after the last renewal",
    "recorded_stages": "how many stages this incarnation has recorded",
    "reliability": "decayed successes and failures, and the time of that decay",
    "requests_per_minute": "limit by its machine",
    "shared_budgets": "shared budgets that apply to it: names, and `<queue>=<name>,<name>`",
    "stage_ms": "how long stages take lately: `<queue>=<ms> …`",
    "warm": "queues whose model it has loaded, space separated",
    "warm_since": "when `warm` last changed, in ms",
    "pass_over": "how many ms stages of other queues may be passed over for them: `<queue>=<ms> …`",
    "worker": "name of its Celery worker",
}
"""Fields of `seat:<seat>`."""
