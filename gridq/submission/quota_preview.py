"""Check whether an agent may submit a job now, without submitting it.

It checks the API key, the agent's quota and its team's, and returns the refusal that a submission would get.
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

DEFAULT_AGENT: str = JobOptions.model_fields["agent"].default
"""The agent of a job whose submitter names none."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Whose job it would be, and the refusal, None if the agent may submit it.

    `agent` None: not known, as the API key is refused. `team` None: the agent has no team.
    """

    agent: str | None
    team: str | None = None
    refusal: GridError | None = None


def check_allowance(
    scripts: Scripts, config: Settings, agent: str | None, micro_dollars: int, tokens: int, *, gpu_ms: int = 0
) -> Allowance:
    """Check whether a job of this cost and size may start now. `gpu_ms`: the device time that it declares.

    `agent` None: the agent is the one that the settings identify. Raises ConfigError if it is not a name.
    """
    try:
        if agent is None:
            agent, team = _identify(scripts, config)
        else:
            team = _find_team(scripts, agent)
    except AuthError as exc:
        return Allowance(None, refusal=exc)
    found = scripts.preview_quota(agent, team or "-", micro_dollars, tokens, gpu_ms)
    team = None if found.team == "-" else found.team
    if found.refusal is None:
        return Allowance(agent, team)
    zone = accounts.read_zone(scripts.client, scripts.keys, config.timezone)
    return Allowance(agent, team, accounts.build_quota_error(found.refusal, zone))


def _identify(scripts: Scripts, config: Settings) -> tuple[str, str | None]:
    """Return the agent and team that the settings identify. Raises AuthError."""
    if config.key is not None:
        key = api_keys.verify(scripts.client, scripts.keys, config.key)
        return key.agent, key.team
    if scripts.client.exists(scripts.keys("api_keys")):
        raise api_keys.build_key_error("missing")
    return DEFAULT_AGENT, None


def _find_team(scripts: Scripts, agent: str) -> str | None:
    """Return the team of an agent's API keys."""
    if not NAME.fullmatch(agent):
        raise ConfigError(
            f"Invalid agent name {agent[:64]!r}",
            {"path": "--agent", "expected": "1 to 64 letters, digits, '_', '.', '@' or '-'"},
        )
    now = now_ms(scripts.client)
    keys = (key for key in api_keys.list_keys(scripts.client, scripts.keys) if key.agent == agent)
    return next((key.team for key in keys if key.is_valid(now)), None)
