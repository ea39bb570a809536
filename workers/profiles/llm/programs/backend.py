"""The backend of a seat with a vendor's program. It takes requests of the OpenAI API format.

One call is one run of the program, on the seat's login, in an empty folder of its own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gridq.errors import GridError, JobCancelled, SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.api_request import OPENAI
from workers.model_apis.usage import format_openai_usage, parse_openai_usage
from workers.profiles.llm.programs.confinement import list_grid_paths, make_prefix
from workers.profiles.llm.programs.failures import make_error, redact, remove_prompt
from workers.profiles.llm.programs.login_lock import lock_login
from workers.profiles.llm.programs.process import ProgramRun
from workers.profiles.llm.programs.prompts import Prompt, build_prompt
from workers.profiles.llm.programs.vendor import OutputParser, ProgramCall, VendorProgram

LOGIN_FILES = (
    *(".credentials.json", "auth.json", "config.json"),
    *("oauth_creds.json", ".gemini/oauth_creds.json"),
    *("gemini-credentials.json", ".gemini/gemini-credentials.json"),
)
"""The files in which vendors' programs keep their logins."""


@dataclass(frozen=True)
class ProgramLogin:
    """One login of one program on this machine: what all calls on it have in common.

    `path` is the executable, `folder` the folder of the login. `identity` identifies the login on this
    machine. `silence` is how many seconds the program may write nothing. `allows_tools` is true if the owner
    lets it use its tools, `is_metered` if each call costs what the program reports. `args` are the owner's
    additional arguments, `secrets` values that no error may show.
    """

    program: VendorProgram
    path: str
    environment: Mapping[str, str]
    folder: Path
    identity: str
    silence: float
    allows_tools: bool = False
    args: tuple[str, ...] = ()
    is_metered: bool = False
    secrets: tuple[str, ...] = ()


class ProgramBackend:
    """Runs the calls on one login, one after another."""

    api = OPENAI
    is_strict = False

    def __init__(self, login: ProgramLogin) -> None:
        self._login = login

    def close(self) -> None:
        """Do nothing: a backend holds nothing between calls, and a running call ends with its stage."""

    def stamp_login(self) -> str:
        """Return when each file of the login was last written. Not every vendor keeps its login in a file."""
        stamps = []
        for name in LOGIN_FILES:
            with contextlib.suppress(OSError):
                stamps.append(f"{name} {(self._login.folder / name).stat().st_mtime_ns}")
        return "; ".join(stamps)

    def make_format_error(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(f"{self._login.program.title} returned no usable answer", {"reason": reason})

    def post(self, path: str, body: dict[str, Json], context: StageContext) -> dict[str, Json]:
        """Make one call and return the answer as a `chat.completion`."""
        texts: list[str] = []
        with contextlib.closing(self._call(path, body, context, streams=False)) as pieces:
            parser = _collect_texts(pieces, texts)
        message = {"role": "assistant", "content": "".join(texts)}
        choice = {"index": 0, "message": message, "finish_reason": parser.finish_reason, "logprobs": None}
        return {
            **_make_head(body, "chat.completion"),
            "choices": [choice],
            **self._make_usage(parser),
        }

    def stream(self, path: str, body: dict[str, Json], context: StageContext) -> Generator[dict[str, Json]]:
        """Make one call and yield the answer as the chunks of a chat completion."""
        head = _make_head(body, "chat.completion.chunk")
        with contextlib.closing(self._call(path, body, context, streams=True)) as pieces:
            for current, text in pieces:
                parser = current
                if text:
                    yield {**head, "choices": [_make_choice({"role": "assistant", "content": text})]}
        yield {**head, "choices": [_make_choice({}, parser.finish_reason)]}
        usage = self._make_usage(parser)
        if usage:
            yield {**head, "choices": [], **usage}

    def _call(
        self, path: str, body: dict[str, Json], context: StageContext, *, streams: bool
    ) -> Generator[tuple[OutputParser, str]]:
        """Yield the pieces of the answer, each with its parser. The last piece is empty."""
        login, program = self._login, self._login.program
        prompt = build_prompt(program, path, body, allows_tools=login.allows_tools, drop=context.drop_field)
        with lock_login(login.identity, context) as locked:
            call = _prepare_call(login, prompt, str(body["model"]), locked.folder, streams)
            parser = program.make_parser(call)
            try:
                hidden = [*list_grid_paths(), locked.folder.parent]
                prefix = make_prefix(hidden, (locked.folder, login.folder))
                argv = [*prefix, login.path, *program.make_arguments(call)]
                # programs leave reports with the prompt in their TMPDIR
                environment = {**login.environment, "TMPDIR": str(call.temp_folder)}
                if program.make_variables is not None:
                    environment |= program.make_variables(call)
                run = ProgramRun(
                    argv,
                    env=environment,
                    folder=call.folder,
                    stdin=prompt.text.encode("utf-8", "replace"),
                    context=context,
                    silence=login.silence,
                    descriptors=locked.descriptors,
                    hopeless=program.hopeless,
                )
            except OSError as exc:
                reason = f"{type(exc).__name__}: {exc.strerror}"
                raise self._make_error(parser, reason, prompt, None) from None
            try:
                with run:
                    for line in _iter_lines(run):
                        text = parser.add_line(line)
                        run.is_done = parser.is_complete
                        if text:
                            yield parser, text
            except GridError as error:
                self._report_usage(parser, context)
                error.details.setdefault("cli", program.name)
                if not isinstance(error, JobCancelled):
                    error.details.setdefault("reason", self._get_last_output(run, prompt))
                raise
            if not parser.is_complete or not parser.has_text:
                self._report_usage(parser, context)
                raise self._make_error(parser, run.stderr, prompt, run.code)
        yield parser, ""

    def _report_usage(self, parser: OutputParser, context: StageContext) -> None:
        """Report what a failed call has used, as far as the program has said."""
        if parser.usage is not None:
            context.report(parse_openai_usage(self._make_usage(parser)["usage"]))

    def _make_usage(self, parser: OutputParser) -> dict[str, Json]:
        """Return the usage as a field of the answer, no field if the program reports none."""
        if parser.usage is None:
            return {}
        has_cost = self._login.is_metered and parser.dollars is not None
        return {"usage": format_openai_usage(parser.usage) | ({"cost": parser.dollars} if has_cost else {})}

    def _get_last_output(self, run: ProgramRun, prompt: Prompt) -> str:
        output = remove_prompt(run.stderr, f"{prompt.text}\n{prompt.system}")
        return redact(output, self._login.secrets) or "it wrote nothing to stderr"

    def _make_error(self, parser: OutputParser, stderr: str, prompt: Prompt, code: int | None) -> GridError:
        """Return the error for a call without an answer.

        The reason is the one that the program gave, else what it wrote beside its answer.
        """
        login = self._login
        quoted = f"{prompt.text}\n{prompt.system}"
        message, stderr = remove_prompt(parser.refusal, quoted), remove_prompt(stderr, quoted)
        message = message or "\n".join(filter(None, (remove_prompt(parser.noise, quoted), stderr)))
        reason = redact(message, login.secrets)
        details: dict[str, Json] = {"cli": login.program.name}
        if code is not None:
            details["exit"] = code
            if not message.strip() or (parser.is_complete and not parser.refusal):
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                reason = f"it ended with {how} and no answer" + (f": {reason}" if reason else "")
        return make_error(login.program, message, stderr, reason, details)


def _collect_texts(pieces: Generator[tuple[OutputParser, str]], texts: list[str]) -> OutputParser:
    """Append the texts of a call to `texts` and return its parser."""
    for parser, text in pieces:
        texts.append(text)
        last = parser
    return last


def _prepare_call(
    login: ProgramLogin, prompt: Prompt, model: str, scratch: Path, streams: bool
) -> ProgramCall:
    """Create the folders of a call in `scratch`."""
    folder, input_folder, temp_folder = scratch / "work", scratch / "input", scratch / "tmp"
    for each in (folder, input_folder, temp_folder):
        each.mkdir()
    return ProgramCall(
        model=model,
        folder=folder,
        input_folder=input_folder,
        temp_folder=temp_folder,
        login_folder=login.folder,
        system=prompt.system,
        schema=prompt.schema,
        streams=streams,
        allows_tools=login.allows_tools,
        args=login.args,
    )


def _iter_lines(run: ProgramRun) -> Iterator[bytes]:
    """Yield each line of the output as soon as it is complete."""
    buffer = bytearray()
    for data in run.read_output():
        start = len(buffer)
        buffer += data
        end = buffer.rfind(b"\n", start)
        if end < 0:
            continue
        lines = bytes(buffer[: end + 1])
        del buffer[: end + 1]
        yield from lines.splitlines()
    if buffer:
        yield bytes(buffer)


def _make_choice(delta: dict[str, Json], finish_reason: str | None = None) -> dict[str, Json]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}


def _make_head(body: dict[str, Json], kind: str) -> dict[str, Json]:
    return {"object": kind, "created": int(time.time()), "model": body["model"]}
