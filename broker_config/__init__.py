"""Configuration of what gridq stands on: Celery."""
