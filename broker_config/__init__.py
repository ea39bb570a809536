"""Configuration of what gridq stands on: Celery, Flower, the Redis server."""
