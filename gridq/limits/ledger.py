"""The ledger: what was settled, charged and counted, entry by entry.

The scripts alone write entries, in the call that changes the counters (store/lua/lib/ledger.lua). Entries
never change. This module reads them page by page, so the length of the ledger does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from redis import Redis

from gridq.protocol.models import Json
from gridq.store.keys import Keys

PAGE_SIZE = 1000
"""Entries in one round trip, which keep the server busy for less than a millisecond."""

RECORDED = "done"
LATE = "late"
ATTEMPTS = (RECORDED, "failed", "seat", "died", "lost", "back", "cancelled", LATE)
"""The outcomes of an attempt. Only recorded ones are charged to the agent too."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the ledger; `id` is its stream id, `at` is in ms by the server's clock.

    `what` is the outcome of an attempt, or

    - `job`: one more job of its agent
    - `refill`: a window of which nothing is used yet; `queue` is `own/money/month` (a seat's account, the
      resource, the window), or without the account if `agent` is a shared one; `micro_dollars` is the limit
    - `begin`: the first of all entries
    - `carried`: what `agent` (`a:<agent>` or `t:<team>`) had used of `queue` (`money` or `jobs`) before that

    `team`: `-` if the agent has none, empty if no limits counted the entry. `month`: the start, in ms, of the
    month in which agent and team were charged, empty if they were not. `micro_dollars`: None if the use has
    no price or is not known. `ms`: the time since the claim. `accounts`: the shared accounts that were
    charged, separated by commas; `-` if there are none, empty if no budget applied to the seat. `requests`:
    the seat's requests it counts for. `gpu_ms`: the ms for which it used the seat's device.
    """

    id: str
    at: int
    what: str
    job: str = ""
    step: int | None = None
    attempt: int | None = None
    seat: str = ""
    agent: str = ""
    team: str = ""
    queue: str = ""
    micro_dollars: int | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    ms: int | None = None
    month: str = ""
    accounts: str = ""
    requests: int = 0
    gpu_ms: int = 0

    @property
    def charged(self) -> Literal["agent", "seat"] | None:
        """The payer: also the agent for what was recorded, only the seat for waste; None: no attempt."""
        if self.what not in ATTEMPTS:
            return None
        return "agent" if self.what == RECORDED else "seat"

    @property
    def used(self) -> bool:
        """True if the attempt is known to have used something."""
        used = self.tokens_in + self.tokens_out + self.gpu_ms
        return self.what == RECORDED or used > 0 or bool(self.micro_dollars)

    @property
    def cost(self) -> int | None:
        """The cost in micro-dollars; None if nothing was used, or it has no price."""
        return self.micro_dollars if self.used else None

    def to_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object, with `at` in seconds since 1970, and `charged`."""
        found = asdict(self) | {"at": self.at / 1000, "charged": self.charged}
        found["team"] = None if self.team in ("", "-") else self.team
        found["month"] = int(self.month) / 1000 if self.month else None
        found["accounts"] = [name for name in self.accounts.split(",") if name not in ("", "-")]
        return found


def read_entries(
    client: Redis,
    keys: Keys,
    *,
    since: int | None = None,
    until: int | None = None,
    after: str | None = None,
    to: str | None = None,
) -> Iterator[Entry]:
    """Yield the entries from `since` to `until` (ms, both included), or after the id `after` up to `to`."""
    start = f"({after}" if after else "-" if since is None else str(max(since, 0))
    end = to or ("+" if until is None else str(max(until, 0)))
    while True:
        found: Any = client.xrange(keys("ledger"), start, end, count=PAGE_SIZE)
        for raw, fields in found:
            yield _parse_entry(raw.decode(), fields)
        if len(found) < PAGE_SIZE:
            return
        start = f"({found[-1][0].decode()}"


def _parse_entry(name: str, fields: dict[bytes, bytes]) -> Entry:
    words = fields[b"e"].decode("utf-8", "replace").split(" ")
    what, job, step, attempt, seat, agent, team, queue, micro, tokens_in, tokens_out, ms, month, *more = words
    return Entry(
        id=name,
        at=int(name.partition("-")[0]),
        what=what,
        job=job,
        step=_parse_number(step),
        attempt=_parse_number(attempt),
        seat=seat,
        agent=agent,
        team=team,
        queue=queue,
        micro_dollars=_parse_number(micro),
        tokens_in=_parse_number(tokens_in) or 0,
        tokens_out=_parse_number(tokens_out) or 0,
        ms=_parse_number(ms),
        month=month,
        accounts=more[0] if more else "",
        requests=int(more[1]) if len(more) > 1 else 0,
        gpu_ms=int(more[2]) if len(more) > 2 else 0,
    )


def _parse_number(word: str) -> int | None:
    return int(word) if word else None
