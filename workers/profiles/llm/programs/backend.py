"""A CLI seat as one that speaks the OpenAI API format, so that every stage of a model reaches it.

One call is one run of the vendor's program, on the seat's login, in an empty folder of its own.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gridq.errors import GridError, JobCancelled, SeatDegraded, SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.request import OPENAI
from workers.model_apis.usage import as_openai, openai_usage
from workers.profiles.llm.programs.failures import error_of, told, without_prompt
from workers.profiles.llm.programs.login_lock import alone
from workers.profiles.llm.programs.process import Run
from workers.profiles.llm.programs.prompts import Prompt, prompt_of
from workers.profiles.llm.programs.vendor import Ask, Fault, Provider, Reader

LINE = 64 * 1024 * 1024
"""Bytes of one line at most; the whole output has the same bound."""


@dataclass(frozen=True)
class CliLogin:
    """One login of one program on this machine: what every call on it has in common.

    `login` is its folder, `secrets` what no error may show, `silence` the seconds for which it may say
    nothing. `tools`: its owner lets it use its tools; `args`: what its owner adds; `metered`: each call costs
    what it says.
    """

    provider: Provider
    program: str
    environment: Mapping[str, str]
    login: str
    silence: float
    tools: bool = False
    args: tuple[str, ...] = ()
    metered: bool = False
    secrets: tuple[str, ...] = ()


class CliSpeaker:
    """One call after another on one login."""

    api = OPENAI
    strict = False

    def __init__(self, cli: CliLogin) -> None:
        self._cli = cli

    def close(self) -> None:
        """Nothing is held between calls; what is under way ends with its stage."""

    def malformed(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(f"{self._cli.provider.title} gave no usable answer", {"reason": reason})

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """One call, its whole answer as a `chat.completion`."""
        texts: list[str] = []
        with contextlib.closing(self._call(path, body, context, partial=False)) as call:
            reader = _collect(call, texts)
        message = {"role": "assistant", "content": "".join(texts)}
        choice = {"index": 0, "message": message, "finish_reason": reader.finish, "logprobs": None}
        return {**_head(reader, body, "chat.completion"), "choices": [choice], **self._usage(reader)}

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """One call, its answer as the chunks of a chat completion."""
        head: dict[str, Json] | None = None
        with contextlib.closing(self._call(path, body, context, partial=True)) as call:
            for reader, text in call:
                head = head or _head(reader, body, "chat.completion.chunk")
                if text:
                    yield {**head, "choices": [_delta({"role": "assistant", "content": text})]}
        assert head is not None
        yield {**head, "choices": [_delta({}, reader.finish)]}
        usage = self._usage(reader)
        if usage:
            yield {**head, "choices": [], **usage}

    def _call(
        self, path: str, body: dict[str, Json], context: StageContext, *, partial: bool
    ) -> Generator[tuple[Reader, str]]:
        """The pieces of the answer as they come, each with its reader; the last is empty, and the reader's
        answer then whole.
        """
        cli = self._cli
        prompt = prompt_of(cli.provider, path, body, tools=cli.tools)
        with alone(cli.login, context) as own:
            ask = _asked(cli, prompt, str(body["model"]), own.folder, partial)
            reader = cli.provider.reader(ask)
            try:
                argv = [cli.program, *cli.provider.argv(ask)]
                # programs leave reports there, with the prompt
                environment = {**cli.environment, "TMPDIR": str(ask.temporary)}
                if cli.provider.variables is not None:
                    environment |= cli.provider.variables(ask)
                run = Run(
                    argv,
                    env=environment,
                    folder=ask.folder,
                    told=prompt.text.encode("utf-8", "replace"),
                    context=context,
                    silence=cli.silence,
                    keep=own.keep,
                    hopeless=cli.provider.hopeless,
                )
            except OSError as exc:
                raise self._failed(reader, f"{type(exc).__name__}: {exc.strerror}", prompt, None) from None
            try:
                with run:
                    for line in _lines(run):
                        text = reader.take(line)
                        run.done = reader.complete
                        if text:
                            self._restrained(run)
                            yield reader, text
                    self._restrained(run)
            except GridError as error:
                self._report(reader, context)
                error.details.setdefault("cli", cli.provider.name)
                if not isinstance(error, JobCancelled):
                    error.details.setdefault("reason", self._last_words(run, prompt))
                raise
            if not reader.complete or not reader.text:
                self._report(reader, context)
                raise self._failed(reader, run.stderr, prompt, run.code)
        yield reader, ""

    def _restrained(self, run: Run) -> None:
        """SeatDegraded: the program has said that it does not keep from its tools."""
        unsafe = self._cli.provider.unsafe
        if unsafe is not None and not self._cli.tools and unsafe.search(run.stderr):
            details: dict[str, Json] = {"reason": told(run.stderr), "state": str(Fault.BROKEN)}
            raise SeatDegraded(f"{self._cli.provider.title}: its tools cannot be taken away", details)

    def _report(self, reader: Reader, context: StageContext) -> None:
        """What a call that failed has used, as far as it said."""
        if reader.usage is not None:
            context.report(openai_usage(self._usage(reader)["usage"]))

    def _usage(self, reader: Reader) -> dict[str, Json]:
        """The usage in the API format's terms; empty where the program told none: it is counted by rule of thumb
        then.
        """
        if reader.usage is None:
            return {}
        priced = self._cli.metered and reader.dollars is not None
        return {"usage": as_openai(reader.usage) | ({"cost": reader.dollars} if priced else {})}

    def _last_words(self, run: Run, prompt: Prompt) -> str:
        words = without_prompt(run.stderr, f"{prompt.text}\n{prompt.system}")
        return told(words, self._cli.secrets) or "it wrote nothing to stderr"

    def _failed(self, reader: Reader, stderr: str, prompt: Prompt, code: int | None) -> GridError:
        """Why there is no answer, by the program's own words: those it gave as its reason, else what it wrote
        beside its answer.
        """
        cli = self._cli
        asked = f"{prompt.text}\n{prompt.system}"
        words, stderr = without_prompt(reader.refusal, asked), without_prompt(stderr, asked)
        words = words or "\n".join(filter(None, (without_prompt(reader.noise, asked), stderr)))
        shown = told(words, cli.secrets)
        details: dict[str, Json] = {"cli": cli.provider.name}
        if code is not None:
            details["exit"] = code
            if not words.strip() or (reader.complete and not reader.refusal):
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                shown = f"it ended with {how} and said nothing" + (f": {shown}" if shown else "")
        return error_of(cli.provider, words, stderr, shown, details)


def _collect(call: Generator[tuple[Reader, str]], texts: list[str]) -> Reader:
    """Collect the texts of a call; its reader."""
    for reader, text in call:
        texts.append(text)
        last = reader
    return last


def _asked(cli: CliLogin, prompt: Prompt, model: str, scratch: Path, partial: bool) -> Ask:
    folder, told_, own = scratch / "work", scratch / "told", scratch / "tmp"
    for each in (folder, told_, own):
        each.mkdir()
    return Ask(model, folder, told_, own, prompt.system, prompt.schema, partial, cli.tools, cli.args)


def _lines(run: Run) -> Iterator[bytes]:
    """The lines of its output, each as soon as it is whole."""
    held = bytearray()
    for lump in run.lumps():
        start = len(held)
        held += lump
        end = held.rfind(b"\n", start)
        if end < 0:
            continue
        whole = bytes(held[: end + 1])
        del held[: end + 1]
        yield from whole.splitlines()
    if held:
        yield bytes(held)


def _delta(delta: dict[str, Json], finish: str | None = None) -> dict[str, Json]:
    return {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}


def _head(reader: Reader, body: dict[str, Json], kind: str) -> dict[str, Json]:
    name = f"chatcmpl-{reader.session or secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": body["model"]}
