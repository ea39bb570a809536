"""Translate a chat completion and its chunks to a `response` and its events, as in OpenAI's Responses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gridq.errors import StageError
from gridq.protocol.models import Json
from gridq.protocol.response_object import make_response
from workers.model_apis.chat_assembly import merge_list
from workers.model_apis.data_urls import PICTURES, parse_data_url
from workers.model_apis.identity.fitting import make_id
from workers.model_apis.identity.origins import find_reasoning, make_signed_id
from workers.model_apis.openai.response_items import CUSTOM_INPUT, Tool
from workers.model_apis.reasoning_marks import pack_state
from workers.model_apis.token_estimates import estimate_tokens
from workers.model_apis.usage import complete_usage, format_responses_usage, parse_openai_usage

SERVICE_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast", "ultrafast"})
UNLIKELY = -9999.0
"""OpenAI's log probability of a token that is not among the likely ones. Engines send infinity, which is no
JSON.
"""

INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(eq=False)
class OutputItem:
    """An item of the output: its place, and what it is so far.

    `arguments` are those of a tool call, `state` the fields of reasoning that its model wants back.
    """

    index: int
    item: dict[str, Any]
    arguments: str = ""
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> dict[str, Json]:
        """The fields of an event that say which item it is about."""
        return {"item_id": self.item["id"], "output_index": self.index}


class ResponseEvents:
    """Translates the chunks of a chat completion, with ids of the grid's own, to the events of a response.

    Texts come one after another. Tool calls, whose pieces a chat may interleave, are open side by side until
    the chat ends.
    """

    def __init__(
        self,
        request: dict[str, Json],
        response_id: str,
        tools: Mapping[str, Tool] | None = None,
        *,
        shows_reasoning: bool = False,
        state_origin: str = "",
    ) -> None:
        """Take the tools of the request by the names of their functions in the chat.

        `state_origin` is the model whose reasoning goes into `encrypted_content`, empty for none.
        """
        self._request = request
        self._tools = tools or {}
        self._shows_reasoning = shows_reasoning
        self._state_origin = state_origin
        self._response = make_response(request, response_id, int(time.time()), "in_progress")
        self._output: list[OutputItem] = []
        self._text: OutputItem | None = None  # the open item of text or reasoning
        self._calls: dict[int, OutputItem] = {}
        self._sequence_number = 0
        self._finish_reason: Json = None
        self._stated_usage: Json = None
        self._pieces = 0

    def _make_event(self, kind: str, **fields: Json) -> dict[str, Json]:
        number, self._sequence_number = self._sequence_number, self._sequence_number + 1
        return {"type": kind, "sequence_number": number, **fields}

    def add_chunk(self, chunk: dict[str, Json]) -> Iterator[dict[str, Json]]:
        """Yield the events for `chunk`."""
        if isinstance(chunk.get("usage"), dict):
            self._stated_usage = chunk["usage"]
        self._response["model"] = chunk.get("model") or self._response["model"]
        if chunk.get("service_tier") in SERVICE_TIERS:
            self._response["service_tier"] = chunk["service_tier"]
        if not self._sequence_number:
            yield self._make_event("response.created", response=dict(self._response))
            yield self._make_event("response.in_progress", response=dict(self._response))
        choice = (chunk.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        logprobs = (choice.get("logprobs") or {}).get("content")
        yield from self._add_reasoning(delta)
        if delta.get("content"):
            yield from self._add_text("output_text", delta["content"], _translate_logprobs(logprobs))
        if delta.get("refusal"):
            yield from self._add_text("refusal", delta["refusal"], [])
        for annotation in delta.get("annotations") or ():
            yield from self._add_annotation(annotation)
        for call in delta.get("tool_calls") or ():
            yield from self._add_call(call)
        for image in delta.get("images") or ():
            yield from self._add_image(image)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _open(self, item: dict[str, Any]) -> OutputItem:
        opened = OutputItem(len(self._output), item)
        self._output.append(opened)
        return opened

    def _add_item(self, opened: OutputItem) -> dict[str, Json]:
        copied = json.loads(json.dumps(opened.item))
        return self._make_event("response.output_item.added", output_index=opened.index, item=copied)

    def _add_reasoning(self, delta: dict[str, Json]) -> Iterator[dict[str, Json]]:
        """Add a piece of reasoning: its text as a summary, and what its model wants back."""
        name, text = find_reasoning(delta)
        details = delta.get("reasoning_details")
        self._pieces += bool(text)
        if not (text and self._shows_reasoning) and not ((text or details) and self._state_origin):
            return
        if self._text is None or self._text.item["type"] != "reasoning":
            yield from self._close_text()
            self._text = self._open({"id": make_id("rs"), "type": "reasoning", "summary": []})
            yield self._add_item(self._text)
        opened = self._text
        if isinstance(details, list):
            merge_list(opened.state.setdefault("reasoning_details", []), details)
        elif text:
            opened.state[name] = opened.state.get(name, "") + text
        if not text or not self._shows_reasoning:
            return
        place, summary = {**opened.place, "summary_index": 0}, opened.item["summary"]
        if not summary:
            part = {"type": "summary_text", "text": ""}
            yield self._make_event("response.reasoning_summary_part.added", **place, part=part)
            summary.append(dict(part))
        summary[0]["text"] += text
        yield self._make_event("response.reasoning_summary_text.delta", **place, delta=text)

    def _close_reasoning(self, opened: OutputItem) -> Iterator[dict[str, Json]]:
        place = {**opened.place, "summary_index": 0}
        for part in opened.item["summary"]:
            yield self._make_event("response.reasoning_summary_text.done", **place, text=part["text"])
            yield self._make_event("response.reasoning_summary_part.done", **place, part=part)
        state = opened.state
        if self._state_origin and state:
            details = {name: state[name] for name in state if name == "reasoning_details"}
            opened.item["encrypted_content"] = pack_state(details or state, self._state_origin)

    def _add_text(self, kind: str, text: str, logprobs: list[Json]) -> Iterator[dict[str, Json]]:
        """Add a piece of text or of a refusal."""
        self._pieces += 1
        if self._text is None or self._text.item["type"] != "message":
            yield from self._close_text()
            message = {"id": make_id("msg"), "type": "message", "status": "in_progress", "role": "assistant"}
            self._text = self._open({**message, "content": []})
            yield self._add_item(self._text)
        parts = self._text.item["content"]
        if not parts or parts[-1]["type"] != kind:
            yield from self._close_part()
            part: dict[str, Any] = {"type": kind, "refusal": ""}
            if kind == "output_text":
                part = {"type": kind, "text": "", "annotations": [], "logprobs": []}
            yield self._make_event(
                "response.content_part.added",
                **self._text.place,
                content_index=len(parts),
                part={key: list(value) if isinstance(value, list) else value for key, value in part.items()},
            )
            parts.append(part)
        place = {**self._text.place, "content_index": len(parts) - 1}
        if kind == "output_text":
            parts[-1]["text"] += text
            parts[-1]["logprobs"] += logprobs
            yield self._make_event("response.output_text.delta", **place, delta=text, logprobs=logprobs)
        else:
            parts[-1]["refusal"] += text
            yield self._make_event("response.refusal.delta", **place, delta=text)

    def _add_annotation(self, annotation: Json) -> Iterator[dict[str, Json]]:
        """Add a link of a web search to the open text, as some endpoints send it."""
        cited = annotation.get("url_citation") if isinstance(annotation, dict) else None
        parts = self._text.item.get("content") if self._text is not None else None
        if not isinstance(cited, dict) or not parts or parts[-1]["type"] != "output_text":
            return
        assert self._text is not None
        link: dict[str, Json] = {"type": "url_citation"}
        link |= {key: cited.get(key) or 0 for key in ("start_index", "end_index")}
        link |= {key: cited.get(key) or "" for key in ("title", "url")}
        parts[-1]["annotations"].append(link)
        yield self._make_event(
            "response.output_text.annotation.added",
            **self._text.place,
            content_index=len(parts) - 1,
            annotation_index=len(parts[-1]["annotations"]) - 1,
            annotation=link,
        )

    def _add_call(self, piece: dict[str, Json]) -> Iterator[dict[str, Json]]:
        """Add a piece of a tool call, the first of which has the id and the name."""
        self._pieces += 1
        function = piece.get("function") or {}
        known = self._calls.get(piece["index"])
        if known is None:
            yield from self._close_text()
            known = self._calls[piece["index"]] = self._open(self._make_call(function["name"], piece))
            yield self._add_item(known)
        arguments = function.get("arguments")
        if arguments:
            known.arguments += arguments
            if known.item["type"] == "function_call":
                yield self._make_event(
                    "response.function_call_arguments.delta", **known.place, delta=arguments
                )

    def _make_call(self, chat_name: str, piece: dict[str, Json]) -> dict[str, Json]:
        tool = self._tools.get(chat_name) or Tool("function", chat_name)
        named: dict[str, Json] = {"call_id": make_signed_id(piece), "name": tool.name}
        if tool.namespace:
            named["namespace"] = tool.namespace
        if tool.kind == "custom":
            return {"id": make_id("ctc"), "type": "custom_tool_call", **named, "input": ""}
        start = {"id": make_id("fc"), "type": "function_call", "status": "in_progress"}
        return {**start, **named, "arguments": ""}

    def _add_image(self, image: Json) -> Iterator[dict[str, Json]]:
        """Add a picture, which chats send as a data URL in `images`."""
        url = (image.get("image_url") or {}).get("url") if isinstance(image, dict) else None
        try:
            picture = parse_data_url(url if isinstance(url, str) else "", "images")
        except StageError:
            raise ValueError("a picture is no data URL") from None
        yield from self._close_text()
        made = {"id": make_id("ig"), "type": "image_generation_call", "status": "in_progress", "result": None}
        opened = self._open(made)
        yield self._add_item(opened)
        opened.item |= {"status": "completed", "result": picture.data}
        if picture.media_type in PICTURES:
            opened.item["output_format"] = picture.media_type.removeprefix("image/")
        yield self._finish_item(opened)

    def _finish_item(self, opened: OutputItem) -> dict[str, Json]:
        return self._make_event("response.output_item.done", output_index=opened.index, item=opened.item)

    def _close_part(self) -> Iterator[dict[str, Json]]:
        """End the last part of the open message, if it has one."""
        assert self._text is not None
        parts = self._text.item["content"]
        if not parts:
            return
        part, place = parts[-1], {**self._text.place, "content_index": len(parts) - 1}
        if part["type"] == "output_text":
            text, logprobs = part["text"], part["logprobs"]
            yield self._make_event("response.output_text.done", **place, text=text, logprobs=logprobs)
        else:
            yield self._make_event("response.refusal.done", **place, refusal=part["refusal"])
        yield self._make_event("response.content_part.done", **place, part=part)

    def _close_text(self, status: str = "completed") -> Iterator[dict[str, Json]]:
        """End the open message or reasoning, if there is one."""
        if self._text is None:
            return
        if self._text.item["type"] == "message":
            yield from self._close_part()
            self._text.item["status"] = status
        else:
            yield from self._close_reasoning(self._text)
        yield self._finish_item(self._text)
        self._text = None

    def _close_call(self, call: OutputItem, status: str) -> Iterator[dict[str, Json]]:
        if call.item["type"] == "function_call":
            call.item |= {"arguments": call.arguments, "status": status}
            yield self._make_event(
                "response.function_call_arguments.done",
                **call.place,
                name=call.item["name"],
                arguments=call.arguments,
            )
        else:
            text = call.item["input"] = _parse_custom_input(call.arguments)
            if text:
                yield self._make_event("response.custom_tool_call_input.delta", **call.place, delta=text)
            yield self._make_event("response.custom_tool_call_input.done", **call.place, input=text)
        yield self._finish_item(call)

    def end(self, assumed_reason: str = "") -> Iterator[dict[str, Json]]:
        """Yield the last events, none if the chat did not reach its end.

        `assumed_reason` is the finish reason of a chat that states none.
        """
        finish_reason = self._finish_reason or assumed_reason
        if not finish_reason:
            return
        reason = INCOMPLETE_REASONS.get(str(finish_reason))
        status = "incomplete" if reason else "completed"
        yield from self._close_text(status)
        for call in self._calls.values():
            yield from self._close_call(call, status)
        usage = complete_usage(self._stated_usage, lambda: estimate_tokens(self._request), self._pieces)
        counted = parse_openai_usage(usage, self._response["service_tier"])
        response = {
            **self._response,
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": [each.item for each in self._output],
            "usage": format_responses_usage(counted)
            | {name: usage[name] for name in ("cost",) if name in usage},
        }
        if not reason:
            response["completed_at"] = int(time.time())
        yield self._make_event(f"response.{status}", response=response)


def _translate_logprobs(logprobs: Json) -> list[Json]:
    """Return the log probabilities of tokens with the fields that Responses requires."""
    return [
        {
            **_complete_logprob(each),
            "top_logprobs": [_complete_logprob(top) for top in each.get("top_logprobs") or ()],
        }
        for each in logprobs or ()
    ]


def _complete_logprob(each: dict[str, Json]) -> dict[str, Json]:
    logprob = each.get("logprob")
    return {
        "token": each["token"],
        "logprob": UNLIKELY if logprob is None else logprob,
        "bytes": each.get("bytes") or [],
    }


def _parse_custom_input(arguments: str) -> str:
    """Return the input of a custom tool: the one argument of its function, else all that the model wrote."""
    try:
        given = json.loads(arguments)[CUSTOM_INPUT]
    except (ValueError, TypeError, KeyError):
        return arguments
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
