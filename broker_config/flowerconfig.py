"""Flower's settings. `gridq flower` reads them, and so does Celery's own command:

    celery -A gridq.app flower --conf=broker_config/flowerconfig.py

What stands on that command line wins over what stands here, this over FLOWER_… in the environment.
"""

from gridq.config import flower_login
from gridq.config.settings import settings
from gridq.messaging import flower_app

flower_app.adapt_flower()

address = "127.0.0.1"
basic_auth = [f"{flower_login.USER}:{flower_login.read_password(settings())}"]
read_only = True

# What was seen is kept in memory: `gridq jobs` is the history, and Flower's file is a pickle.
persistent = False
max_tasks = 20_000
max_workers = 1_000
purge_offline_workers = flower_app.FORGET_SECONDS

format_task = flower_app.format_task
# Received and the wait say when a stage started; one date more would push its runtime off the screen.
tasks_columns = "name,uuid,state,args,worker,received,wait,runtime,result"
natural_time = False
inspect_timeout = 1000.0

# Debug mode shows tracebacks to whoever asks, with or without the password.
debug = False
