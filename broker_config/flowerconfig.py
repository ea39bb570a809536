"""Flower's settings, for `gridq flower` and for Celery's own command:

    celery -A gridq.app flower --conf=broker_config/flowerconfig.py

Options on that command line override these settings, which override FLOWER_… in the environment.
"""

from gridq.config import flower_login
from gridq.config.settings import settings
from gridq.messaging import flower_app

flower_app.adapt_flower()

address = "127.0.0.1"
basic_auth = [f"{flower_login.USER}:{flower_login.read_password(settings())}"]
read_only = True

# Events are kept in memory only: `gridq jobs` is the history, and Flower's file would be a pickle.
persistent = False
max_tasks = 20_000
max_workers = 1_000
purge_offline_workers = flower_app.FORGET_SECONDS

format_task = flower_app.format_task
# "received" and "wait" show when a stage started; one more date would push its runtime off the screen.
tasks_columns = "name,uuid,state,args,worker,received,wait,runtime,result"
natural_time = False
inspect_timeout = 1000.0

# Debug mode shows tracebacks to everybody, with or without the password.
debug = False
