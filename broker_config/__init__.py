"""Configuration files of the programs that gridq builds on: Celery, Flower, Redis."""
