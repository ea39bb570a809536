"""Limit what agents, teams, seats and queues may use: quotas file, API keys, accounts and the ledger.

In: a quotas file, API keys, and the counters that the scripts keep in Redis.
Out: limits in force, verified keys, accounts, ledger entries, refusals.
Imported by: submission, router, views, client, gateway, cli, workers.cli.
"""

__all__ = ["accounts", "api_keys", "ledger", "ledger_verification", "quotas_file", "quotas_loader"]
