"""Read which seats are live, what they offer and to whom they are lent.

In: the advertisements of workers, and the seat records that the scripts keep in Redis.
Out: live seats, their capabilities, and the reasons why no seat takes a stage.
Imported by: submission, messaging, router, views, client, gateway, cli, workers.machine, workers.process,
workers.supervisor, workers.cli.
"""

__all__ = ["access", "model_commands", "registry", "served_queues"]
