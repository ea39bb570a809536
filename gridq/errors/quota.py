"""A limit on money, tokens, GPU seconds, jobs or requests is reached."""

from __future__ import annotations

from gridq.errors.base import GridError
from gridq.errors.program import ConfigError


class QuotaExceeded(GridError):
    """The job would exceed a limit, so it was not admitted.

    `details`: `limit`, `used`, `reserved` (by running jobs) and `needed` (by this job), in micro-dollars,
    tokens, GPU milliseconds or jobs; `window`, the period that the limit applies to; `retry_at`, when the
    window resets (ISO 8601; null if this job alone exceeds the limit).
    """

    code = "quota.exceeded"
    remedy = "Submit again after `retry_at`, or ask the operator for a higher limit."


class AgentMoneyExceeded(QuotaExceeded):
    """The job would exceed the agent's money limit for this month, week or day."""

    code = "quota.agent_money"


class AgentJobsExceeded(QuotaExceeded):
    """The agent has submitted as many jobs as it may this month, week or day."""

    code = "quota.agent_jobs"


class AgentTokensExceeded(QuotaExceeded):
    """The agent has used as many tokens as it may this month, week or day."""

    code = "quota.agent_tokens"


class AgentGpuSecondsExceeded(QuotaExceeded):
    """The agent has used as many GPU seconds as it may this month, week or day."""

    code = "quota.agent_gpu_seconds"


class TeamMoneyExceeded(QuotaExceeded):
    """The job would exceed the team's money limit for this month, week or day."""

    code = "quota.team_money"


class TeamJobsExceeded(QuotaExceeded):
    """The agent's team has submitted as many jobs as it may this month, week or day."""

    code = "quota.team_jobs"


class TeamTokensExceeded(QuotaExceeded):
    """The agent's team has used as many tokens as it may this month, week or day."""

    code = "quota.team_tokens"


class TeamGpuSecondsExceeded(QuotaExceeded):
    """The agent's team has used as many GPU seconds as it may this month, week or day."""

    code = "quota.team_gpu_seconds"


class JobBudgetExceeded(QuotaExceeded):
    """The job would cost, or has cost, more than its `budget_cents`.

    `details`: `limit`, and `needed` (the estimate) or `used` (if its stages exceeded it); `path` of the
    stage that exceeded it.
    """

    code = "quota.job_budget"
    remedy = "Submit it with a higher `budget_cents`, or with a cheaper model."


class KeyLimitReached(GridError):
    """A limit of the API key is reached; the rejected request does not count.

    `details`: `limit`, `retry_after` in seconds.
    """

    code = "key.limit"
    remedy = "Send the request again after `retry_after`, or use a key with a higher limit."


class KeyRateExceeded(KeyLimitReached):
    """The key made as many requests in the last minute as it may."""

    code = "key.rate"


class KeyBusy(KeyLimitReached):
    """The key has as many requests open at once, on all gateways together, as it may."""

    code = "key.parallel"


class QuotasFileError(ConfigError):
    """The quotas file has an error; the router uses none of it.

    `details`: `path`, the file, line and key.
    """

    code = "quota.file"
    remedy = "Correct the file at `path`; check it with `gridq quota --check FILE`."
