"""An agent or its team has used up what it may use."""

from __future__ import annotations

from gridq.errors.base import GridError
from gridq.errors.program import ConfigError


class QuotaExceeded(GridError):
    """A job would go over a limit; nothing of it was admitted.

    `details`: `limit`, `used`, `held` (by jobs that run) and `needed` (by this one), in micro-dollars, tokens
    or jobs; `window`, in which they count; `retry_at`, ISO 8601, is when that turns (None: the job alone is
    over the limit, at any time).
    """

    code = "quota.exceeded"


class AgentMoneyExceeded(QuotaExceeded):
    """The agent's money for this month, week or day does not suffice."""

    code = "quota.agent_money"


class AgentJobsExceeded(QuotaExceeded):
    """The agent has submitted as many jobs as it may this month, week or day."""

    code = "quota.agent_jobs"


class AgentTokensExceeded(QuotaExceeded):
    """The agent has used as many tokens as it may this month, week or day."""

    code = "quota.agent_tokens"


class TeamMoneyExceeded(QuotaExceeded):
    """The money of the agent's team for this month, week or day does not suffice."""

    code = "quota.team_money"


class TeamJobsExceeded(QuotaExceeded):
    """The agent's team has submitted as many jobs as it may this month, week or day."""

    code = "quota.team_jobs"


class TeamTokensExceeded(QuotaExceeded):
    """The agent's team has used as many tokens as it may this month, week or day."""

    code = "quota.team_tokens"


class JobBudgetExceeded(QuotaExceeded):
    """The job would cost, or has cost, more than its submitter said it may (`budget_cents`).

    `details`: `limit` and `needed` (by the estimate), or `used` where its stages went over; `path` of the
    stage that did.
    """

    code = "quota.job_budget"


class KeyLimitReached(GridError):
    """An API key's own limit is reached; the request was refused and counts for nothing.

    `details`: `limit`, `retry_after` in seconds.
    """

    code = "key.limit"


class KeyRateExceeded(KeyLimitReached):
    """The key has made as many requests within the last minute as it may."""

    code = "key.rate"


class KeyBusy(KeyLimitReached):
    """The key has as many requests open at once as it may, at all gateways together."""

    code = "key.parallel"


class QuotasFileError(ConfigError):
    """The quotas file has a mistake in it; nothing of it is used. `path` names the file, line and key."""

    code = "quota.file"
