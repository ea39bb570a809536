"""Whether an agent may submit a job now, without submitting it: by its API key, and by its own quota and its
team's, in the words of the refusal that a submission would get.
"""

from __future__ import annotations

from dataclasses import dataclass

from gridq.config.settings import Settings
from gridq.errors import AuthError, ConfigError, GridError
from gridq.jobs.record import JobOptions
from gridq.limits import accounts, api_keys
from gridq.limits.quotas_file import NAME
from gridq.store.connection import now_ms
from gridq.store.scripts import Scripts

ANYBODY: str = JobOptions.model_fields["agent"].default
"""The agent of a job whose submitter names none."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """`agent` None: nobody knows whose the job would be; `team` None: in none. `refusal` None: it may."""

    agent: str | None
    team: str | None = None
    refusal: GridError | None = None


def allowance(scripts: Scripts, config: Settings, agent: str | None, micro: int, tokens: int) -> Allowance:
    """Whether a job of `micro` micro-dollars and so many tokens may begin now, of an agent, or of who submits
    with these settings. ConfigError: `agent` is no name.
    """
    try:
        agent, team = _submitter(scripts, config) if agent is None else (agent, _team(scripts, agent))
    except AuthError as exc:
        return Allowance(None, refusal=exc)
    counts_for, reply = scripts.afford(agent, team or "-", micro, tokens)
    team = None if counts_for == "-" else counts_for
    if not reply:
        return Allowance(agent, team)
    error = accounts.build_quota_error(
        reply, accounts.read_zone(scripts.client, scripts.keys, config.timezone)
    )
    return Allowance(agent, team, error)


def _submitter(scripts: Scripts, config: Settings) -> tuple[str, str | None]:
    """The agent and team of who submits with these settings. AuthError: the grid would not take it."""
    if config.key is not None:
        key = api_keys.verify(scripts.client, scripts.keys, config.key)
        return key.agent, key.team
    if scripts.client.exists(scripts.keys("api_keys")):
        raise api_keys.build_key_error("missing")
    return ANYBODY, None


def _team(scripts: Scripts, agent: str) -> str | None:
    """The team that the keys of an agent are of."""
    if not NAME.fullmatch(agent):
        raise ConfigError(
            f"{agent[:64]!r} is no agent",
            {"path": "--agent", "expected": "1 to 64 letters, digits, '_', '.', '@' or '-'"},
        )
    now = now_ms(scripts.client)
    keys = (key for key in api_keys.list_keys(scripts.client, scripts.keys) if key.agent == agent)
    return next((key.team for key in keys if key.stands(now)), None)
