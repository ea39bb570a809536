"""Translate the input items and tools of a Responses request to the messages and tools of a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gridq.errors import StageError
from gridq.protocol.models import Json
from gridq.protocol.response_needs import OWN_CALLS, OWN_OUTPUTS, OWN_TOOLS
from workers.model_apis.api_request import make_field_error
from workers.model_apis.data_urls import is_data_url, parse_data_url
from workers.model_apis.fields.responses import AT_CHAT
from workers.model_apis.identity.origins import REASONING_FIELDS, split_signed_id
from workers.model_apis.reasoning_marks import MAX_STATE_VALUES, StateReader

CUSTOM_INPUT = "input"
"""The one argument of the function that stands for a custom tool."""

CUSTOM_PARAMETERS: dict[str, Json] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Tool:
    """A tool of the request, behind the name of its function in the chat."""

    kind: str
    name: str
    namespace: str | None = None


def make_chat_name(name: str, namespace: Json) -> str:
    """Return the name of a tool's function in the chat, which has no namespaces."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return namespace + ("" if namespace.endswith("__") else "__") + name


def translate_tools(tools: Json) -> tuple[list[dict[str, Json]], dict[str, Tool]]:
    """Return the functions of the chat, and by the name of each the tool that it stands for.

    Raises StageError naming a tool that only the vendor's own servers run.
    """
    functions: list[dict[str, Json]] = []
    found: dict[str, Tool] = {}

    def add(tool: dict[str, Json], place: str, namespace: str | None = None) -> None:
        kind, name = tool.get("type"), tool.get("name")
        if kind not in OWN_TOOLS:
            raise make_field_error(
                f"{place}.type",
                f"function or custom {AT_CHAT}: it cannot run the tool {kind!r}",
                "remove the tool, or name a model of a seat with the Responses API",
            )
        if not isinstance(name, str) or not name:
            raise make_field_error(f"{place}.name", "the tool's name")
        chat_name = make_chat_name(name, namespace)
        if chat_name in found:
            raise make_field_error(f"{place}.name", f"a name that no other tool has: {chat_name!r}")
        found[chat_name] = Tool(str(kind), name, namespace)
        functions.append({"type": "function", "function": _make_function(tool, chat_name)})

    for at, tool in enumerate(tools or ()):
        if tool.get("type") == "namespace":
            for inner_at, inner in enumerate(tool.get("tools") or ()):
                add(inner, f"tools[{at}].tools[{inner_at}]", str(tool.get("name") or ""))
        else:
            add(tool, f"tools[{at}]")
    return functions, found


def _make_function(tool: dict[str, Json], chat_name: str) -> dict[str, Json]:
    if tool["type"] == "function":
        fields = {
            key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None
        }
        return {"name": chat_name, **fields}
    description = [tool.get("description") or ""]
    form = tool.get("format") or {}
    if form.get("type") == "grammar":
        description.append(
            f"The {CUSTOM_INPUT} must match this {form.get('syntax')} grammar:\n{form.get('definition')}"
        )
    return {
        "name": chat_name,
        "description": "\n\n".join(filter(None, description)),
        "parameters": CUSTOM_PARAMETERS,
    }


def translate_tool_choice(
    choice: Json, functions: list[dict[str, Json]]
) -> tuple[Json, list[dict[str, Json]]]:
    """Return the chat's `tool_choice`, and those of `functions` that the model may call.

    Raises StageError if it names a tool that only the vendor's own servers run.
    """
    match choice:
        case None | "auto" | "none" | "required":
            return choice or "auto", functions
        case {"type": "function" | "custom", "name": str(name)}:
            chat_name = make_chat_name(name, choice.get("namespace"))
            return {"type": "function", "function": {"name": chat_name}}, functions
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*tools]}:
            names = {make_chat_name(str(each.get("name")), each.get("namespace")) for each in tools}
            return mode, [each for each in functions if each["function"]["name"] in names]
    raise make_field_error(
        "tool_choice", f"auto, none, required, a function, a custom tool or allowed_tools {AT_CHAT}"
    )


class Conversation:
    """The messages of a chat, made of a request's items in their order.

    A chat wants the results of tool calls right behind the message with the calls, while items may come in
    any order. Reasoning belongs to the message or the call behind it.
    """

    def __init__(self, origin: str = "") -> None:
        """Take the model that gets its own reasoning back."""
        self._states = StateReader(origin)
        self._state: dict[str, list[Any]] = {}  # of the reasoning before the next item, in its parts
        self._groups: list[list[dict[str, Any]]] = []
        """Each message, behind one with calls their results. Text that grows is a list of its parts."""
        self._callers: dict[str, list[dict[str, Any]]] = {}
        """By call id, the group of the message that made the call."""

    def build_messages(self) -> list[dict[str, Any]]:
        """Return the messages so far."""
        messages = [message for group in self._groups for message in group]
        for message in messages:
            content = message["content"]
            if isinstance(content, list) and content and isinstance(content[0], str):
                message["content"] = "\n\n".join(content)
            message |= {
                name: "".join(message[name])
                for name in REASONING_FIELDS
                if isinstance(message.get(name), list)
            }
        return messages

    @property
    def _last(self) -> dict[str, Any]:
        return self._groups[-1][-1] if self._groups else {"role": None}

    def _add(self, message: dict[str, Any]) -> None:
        self._groups.append([message])

    def add_system(self, text: str) -> None:
        """Add a system message. Many models take only one, at the start."""
        if self._last["role"] == "system":
            self._last["content"].append(text)
        elif text:
            self._add({"role": "system", "content": [text]})

    def add_items(self, items: Json) -> None:
        """Add the `input` of a request: a string or a list of items. Raises StageError for a wrong one."""
        if isinstance(items, str):
            self._add({"role": "user", "content": items})
            return
        for at, item in enumerate(items):
            self._add_item(item, f"input[{at}]")

    def _add_item(self, item: dict[str, Json], place: str) -> None:
        kind = item.get("type") or "message"
        if kind == "reasoning":
            self._add_reasoning(item, place)
            return
        if kind == "message":
            self._add_message(item, place)
        elif kind in OWN_CALLS:
            self._add_call(item, kind, place)
        elif kind in OWN_OUTPUTS:
            self._add_output(item, place)
        else:
            raise make_field_error(
                f"{place}.type",
                f"message, reasoning, a call of your own tools or its output {AT_CHAT}, not {kind!r}",
                "remove the item, or name a model of a seat with the Responses API",
            )
        self._state = {}

    def _add_reasoning(self, item: dict[str, Json], place: str) -> None:
        """Keep the reasoning for the next item, if it is the model's own. No other could use it."""
        try:
            state = self._states.read(item)
        except OverflowError:
            expected = f"what the grid sent: at most {MAX_STATE_VALUES} values in all items of a request"
            raise make_field_error(f"{place}.encrypted_content", expected) from None
        for name, value in state.items():
            self._state.setdefault(name, []).extend([value] if isinstance(value, str) else value)

    def _open_assistant(self, *, is_text: bool) -> dict[str, Any]:
        """Return the message for the next text or call of the assistant, with the reasoning before it.

        A text joins one with calls, because no other message may stand between calls and their results.

        Signed reasoning keeps its place among texts and calls: it needs a message of its own. Other
        reasoning is one text for each message.
        """
        last = self._last
        starts_anew = last["role"] != "assistant" or (is_text and not last.get("tool_calls"))
        if starts_anew or "reasoning_details" in self._state:
            self._add({"role": "assistant", "content": None, **self._state})
        else:
            for name, parts in self._state.items():
                last.setdefault(name, []).extend(parts)
        self._state = {}
        return self._last

    def _add_message(self, item: dict[str, Json], place: str) -> None:
        content, where = item.get("content"), f"{place}.content"
        match item.get("role"):
            case "system" | "developer":
                self.add_system(_join_text(content, where, "\n\n"))
            case "user":
                self._add({"role": "user", "content": _translate_content(content, where)})
            case "assistant":
                text = _join_text(content, where, "")
                message = self._open_assistant(is_text=True)
                if text:
                    message["content"] = message["content"] or []
                    message["content"].append(text)
                elif not message.get("tool_calls"):
                    message["content"] = message["content"] or ""
            case _:
                raise make_field_error(f"{place}.role", "user, assistant, system or developer")

    def _add_call(self, item: dict[str, Json], kind: str, place: str) -> None:
        call_id, name = item.get("call_id"), item.get("name")
        if not isinstance(call_id, str) or not isinstance(name, str):
            raise make_field_error(place, "a call with call_id and name")
        if kind == "function_call":
            arguments = item.get("arguments") or "{}"
        else:
            arguments = json.dumps({CUSTOM_INPUT: item.get("input") or ""}, ensure_ascii=False)
        function = {"name": make_chat_name(name, item.get("namespace")), "arguments": arguments}
        call = {**split_signed_id(call_id), "type": "function", "function": function}
        message = self._open_assistant(is_text=False)
        message.setdefault("tool_calls", []).append(call)
        message["content"] = message["content"] or None
        self._callers[call_id] = self._groups[-1]

    def _add_output(self, item: dict[str, Json], place: str) -> None:
        call_id = item.get("call_id")
        group = self._callers.get(call_id) if isinstance(call_id, str) else None
        if group is None or not isinstance(call_id, str):
            raise make_field_error(
                f"{place}.call_id",
                "the call_id of a call before it",
                "send the call as well: the grid keeps no items",
            )
        content = _translate_content(item.get("output"), f"{place}.output")
        parts = content if isinstance(content, list) else []
        text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
        chat_id = split_signed_id(call_id)["id"]
        group.append({"role": "tool", "tool_call_id": chat_id, "content": text if parts else content})
        others = [part for part in parts if part["type"] != "text"]
        if others:  # a chat takes pictures and files in user messages only
            self._add({"role": "user", "content": others})


def _join_text(content: Json, place: str, separator: str) -> str:
    """Return a string, or the joined text of a list of text parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = []
    for at, part in enumerate(content):
        text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
        if part.get("type") not in ("input_text", "output_text", "text", "refusal") or not isinstance(
            text, str
        ):
            raise make_field_error(f"{place}[{at}]", "text")
        texts.append(text)
    return separator.join(texts)


def _translate_content(content: Json, place: str) -> Json:
    """Return text as a string, which every endpoint takes, and anything else as parts of a chat."""
    if not isinstance(content, list):
        return content or ""
    parts = [_translate_part(part, f"{place}[{at}]") for at, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _translate_part(part: Mapping[str, Json], place: str) -> dict[str, Json]:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url)}:
            url = str(parse_data_url(url, f"{place}.image_url")) if is_data_url(url) else url
            detail = {"detail": part["detail"]} if part.get("detail") in ("low", "high", "auto") else {}
            return {"type": "image_url", "image_url": {"url": url, **detail}}
        case {"type": "input_file", "file_data": str(data)}:
            return {
                "type": "file",
                "file": {"filename": part.get("filename") or "document", "file_data": data},
            }
        case {"type": "input_audio", "input_audio": dict(audio)}:
            return {"type": "input_audio", "input_audio": audio}
    raise _make_part_error(part, place)


def _make_part_error(part: Mapping[str, Json], place: str) -> StageError:
    if part.get("file_id") is not None or part.get("file_url") is not None:
        field = "file_id" if part.get("file_id") is not None else "file_url"
        return make_field_error(f"{place}.{field}", f"absent {AT_CHAT}", "send the data itself")
    return make_field_error(
        place, f"input_text, input_image with image_url, or input_file with file_data {AT_CHAT}"
    )
