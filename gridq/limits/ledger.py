"""The entries of the ledger, as they stand in the server: what was settled, charged and counted, in its
order.

They are written by the scripts alone, in the very call that moves the counters (store/lua/lib/ledger.lua),
and never changed. This module reads them, page by page, so that a ledger of any length needs no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from redis import Redis

from gridq.protocol.models import Json
from gridq.store.keys import Keys

PAGE = 1000
"""Entries that one round trip reads: the server is busy with them for less than a millisecond."""

RECORDED = "done"
LATE = "late"
ATTEMPTS = (RECORDED, "failed", "seat", "died", "lost", "back", "cancelled", LATE)
"""What an attempt came to. Only what is recorded is charged to the agent too."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: `id` as the server has it, `at` in ms by the server's clock.

    `what` is what an attempt came to, or `job` (one more counts for its agent), `refill` (of a window nothing
    is used yet: `queue` is a seat's sheet, the thing and the window, `own/money/month`, or of the shared
    sheet `agent` the latter two; `micro_dollars` its limit), `begin` (the first of all entries), `carried`
    (what `agent`, an agent `a:…` or a team `t:…`, had used of `queue`, `money` or `jobs`, before the ledger
    began). `team` is empty where no limits counted the entry, `-` where its agent had none; `month` is when
    the month began in which agent and team were charged, in ms, empty where they were not. `micro_dollars` is
    None where it has no price, or nobody knows what was used. `ms`: since the claim. `sheets`: the shared
    sheets under which it was claimed, with commas between, `-` for none, empty where nothing bound its seat
    then; `requests`: how many of its seat's requests it is.
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
    sheets: str = ""
    requests: int = 0

    @property
    def charged(self) -> Literal["agent", "seat"] | None:
        """Who paid beside the seat, which always does: the agent for what was recorded; nobody for waste."""
        if self.what not in ATTEMPTS:
            return None
        return "agent" if self.what == RECORDED else "seat"

    @property
    def used(self) -> bool:
        """Whether it is known that an attempt used something: not of one handed back before it began."""
        return self.what == RECORDED or self.tokens_in + self.tokens_out > 0 or bool(self.micro_dollars)

    @property
    def cost(self) -> int | None:
        """`micro_dollars`, None also where nothing was used: whether that has a price is not known then."""
        return self.micro_dollars if self.used else None

    def to_json(self) -> dict[str, Json]:
        """The fields for programs: `at` in seconds since 1970, `charged` beside."""
        found = asdict(self) | {"at": self.at / 1000, "charged": self.charged}
        found["team"] = None if self.team in ("", "-") else self.team
        found["month"] = int(self.month) / 1000 if self.month else None
        found["sheets"] = [name for name in self.sheets.split(",") if name not in ("", "-")]
        return found


def read(
    client: Redis,
    keys: Keys,
    *,
    since: int | None = None,
    until: int | None = None,
    after: str | None = None,
    to: str | None = None,
) -> Iterator[Entry]:
    """The entries in their order: of the ms `since` to `until`, both counted; or behind the id `after`, up to
    the id `to`.
    """
    start = f"({after}" if after else "-" if since is None else str(max(since, 0))
    end = to or ("+" if until is None else str(max(until, 0)))
    while True:
        found: Any = client.xrange(keys("ledger"), start, end, count=PAGE)
        for raw, fields in found:
            yield _entry(raw.decode(), fields)
        if len(found) < PAGE:
            return
        start = f"({found[-1][0].decode()}"


def _entry(name: str, fields: dict[bytes, bytes]) -> Entry:
    words = fields[b"e"].decode("utf-8", "replace").split(" ")
    what, job, step, attempt, seat, agent, team, queue, micro, tokens_in, tokens_out, ms, month, *more = words
    return Entry(
        id=name,
        at=int(name.partition("-")[0]),
        what=what,
        job=job,
        step=_number(step),
        attempt=_number(attempt),
        seat=seat,
        agent=agent,
        team=team,
        queue=queue,
        micro_dollars=_number(micro),
        tokens_in=_number(tokens_in) or 0,
        tokens_out=_number(tokens_out) or 0,
        ms=_number(ms),
        month=month,
        sheets=more[0] if more else "",
        requests=int(more[1]) if len(more) > 1 else 0,
    )


def _number(word: str) -> int | None:
    return int(word) if word else None
