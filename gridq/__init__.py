"""gridq pools LLM seats and idle GPUs behind Celery queues named per capability."""
