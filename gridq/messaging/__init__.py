"""Speak Celery and kombu: transport, result backend, wake-ups, events, remote control, Flower.

In: wake-ups, ended jobs, task events.
Out: Celery messages, results and events.
Imported by: tasks, execution, router, cli, workers.process.
"""

__all__ = ["answers", "flower_app", "monitor_events", "router_request", "transport", "wake_ups"]
