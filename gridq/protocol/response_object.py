"""The `response` object of OpenAI's Responses API, as the grid names and fills it.

The grid keeps no responses: `store` is false in every object, whatever the request asked for. Only a
background response can be read again, for as long as the answer of its job is kept. Its id is that of the
job, which ends with BACKGROUND_MARK. Source of the fields: `openai.types.responses`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from gridq.protocol.models import Json

BACKGROUND = ".background"
"""The mark of a response that is read later, before that of its path. store/lua/lib/jobs.lua has it too."""


def make_path_mark(path: str) -> str:
    """Return the end of the job ids of a model API's path: the pieces of these jobs are in its format.

    >>> make_path_mark("chat/completions")
    '.chat-completions'
    """
    return "." + path.replace("/", "-")


MARK = make_path_mark("responses")
BACKGROUND_MARK = BACKGROUND + MARK
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_RESPONSE_JOB = re.compile(f"({_UUID})(?:{re.escape(BACKGROUND)})?{re.escape(MARK)}")
_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})")
_ECHOED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "prompt_cache_key", "safety_identifier"),
    *("temperature", "top_logprobs", "top_p", "user"),
)
"""Fields of the request that the response repeats, null if the request has none."""


def make_response_id(job: str = "") -> str:
    """Return the id of the response that `job` makes, a random one for a job that makes more than this."""
    found = _RESPONSE_JOB.fullmatch(job)
    return "resp_" + (found[1].replace("-", "") if found else uuid.uuid4().hex)


def parse_response_id(response_id: str) -> str | None:
    """Return the job of a background response, None if this cannot be the id of one.

    >>> job = "0f8fad5b-d9cb-469f-a165-70867728950e" + BACKGROUND_MARK
    >>> parse_response_id(make_response_id(job)) == job
    True
    """
    found = _RESPONSE_ID.fullmatch(response_id)
    return None if found is None else str(uuid.UUID(found[1])) + BACKGROUND_MARK


def make_response(
    request: Mapping[str, Json], response_id: str, created_at: int, status: str
) -> dict[str, Json]:
    """Return a response without output, with the fields that it repeats from `request`.

    Its `service_tier` is null: that is the tier which served the request.
    """
    reasoning, text = _as_object(request.get("reasoning")), _as_object(request.get("text"))
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": status,
        "background": bool(request.get("background")),
        "error": None,
        "incomplete_details": None,
        "model": request.get("model") or "",
        "output": [],
        "parallel_tool_calls": request.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "store": False,
        "metadata": request.get("metadata") or {},
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "text": {"format": {"type": "text"}, **{name: each for name, each in text.items() if each}},
        "tool_choice": request.get("tool_choice") or "auto",
        "tools": request.get("tools") or [],
        "truncation": "disabled",
        "service_tier": None,
        **{name: request.get(name) for name in _ECHOED},
        "usage": None,
    }


def _as_object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
