"""Carry out an operator's commands to a seat: `gridq load` and `gridq unload`."""

from __future__ import annotations

import logging
import threading

from redis import Redis
from redis.exceptions import RedisError

from gridq.errors import GridError, SeatError
from gridq.process.periodic import PeriodicThread
from gridq.profiles.profile import Profile, StageContext
from gridq.seats import model_commands
from gridq.seats.model_commands import Answer, Command
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0


class ModelCommands:
    """Reads the commands of one seat and answers them. Each runs on a thread of its own, for a load may take
    minutes.
    """

    def __init__(self, client: Redis, keys: Keys, seat: str, profile: Profile) -> None:
        self._client, self._keys, self._seat, self._profile = client, keys, seat, profile
        self._poll = PeriodicThread("model commands", POLL_SECONDS, self.check)
        self._context = StageContext()

    def start(self) -> None:
        self._poll.start()

    def stop(self) -> None:
        """Stop reading commands, and leave loads that are under way."""
        self._context.cancel()
        self._poll.stop()

    def check(self) -> None:
        """Begin all commands that wait."""
        for command in model_commands.take_commands(self._client, self._keys, self._seat):
            self._answer(command, Answer("running"))
            threading.Thread(
                target=self._carry_out, args=(command,), name=f"gridq-{command.action}", daemon=True
            ).start()

    def _carry_out(self, command: Command) -> None:
        try:
            if command.action == "load":
                self._profile.load(command.model, self._context)
            else:
                self._profile.unload(command.model)
        except GridError as error:
            self._answer(command, Answer("failed", error.to_record()))
        except Exception as exc:  # whoever waits must get any fault of a profile
            log.warning("seat %s: %s of a model failed", self._seat, command.action, exc_info=exc)
            fault = SeatError("The seat's profile failed", {"reason": type(exc).__name__})
            self._answer(command, Answer("failed", fault.to_record()))
        else:
            self._answer(command, Answer("done"))

    def _answer(self, command: Command, answer: Answer) -> None:
        try:
            model_commands.answer_command(self._client, self._keys, command, answer)
        except RedisError as exc:
            log.warning("seat %s: a command could not be answered: %s", self._seat, exc)
