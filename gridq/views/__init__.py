"""Show the grid from outside: jobs, queues, quarantine, the audit and the report.

In: what the scripts keep in Redis. Nothing is written, except to release or drop a stage in quarantine.
Out: job, stage and queue views, texts that say what a job waits for, checks, reports.
Imported by: client, gateway, cli, workers.cli.
"""

__all__ = ["audit", "job_ids", "job_list", "jobs", "quarantine", "queues", "report", "wait_reasons"]
