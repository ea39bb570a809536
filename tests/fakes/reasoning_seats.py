"""Seats whose models think before each call and answer, and reject what their vendors reject of a history.

Each calls the tool `weather` until it has two results since the last question, then answers. `returned`
counts the thoughts that came back with the last request. Sources: the vendors' pages on thinking, on thought
signatures and on encrypted reasoning; DeepSeek's on its thinking mode.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from typing import Any

from gridq.errors import SeatUnavailable, StageError
from gridq.profiles.profile import StageContext
from workers.model_apis.openai.client import OpenAIClient

CALLS = 2
"""Calls before each answer."""


def refuse(reason: str) -> StageError:
    return StageError("The endpoint rejected the request", {"status": 400, "reason": reason})


def digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


class ReasoningSeat:
    """The base: counts steps, and sends an answer whole or as a stream."""

    api = ""
    is_strict = False

    def __init__(self, url: str = "https://a.invalid/v1") -> None:
        self.url = f"{url}/{self.api}"
        self.steps = 0
        self.returned = 0
        self.last: dict[str, Any] = {}

    def make_format_error(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(reason)

    def post(self, path: str, body: dict[str, Any], context: StageContext) -> dict[str, Any]:
        self.last = body = json.loads(json.dumps(body))
        self.returned = 0
        self.steps += 1
        return self.answer(path, body)

    def stream(self, path: str, body: dict[str, Any], context: StageContext) -> Generator[dict[str, Any]]:
        yield from self.split(self.post(path, body, context))

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def split(self, answer: dict[str, Any]) -> Generator[dict[str, Any]]:
        raise NotImplementedError
        yield

    def think(self, steps: int) -> str:
        return f"thought {self.steps} after {steps} results"


class AnthropicSeat(ReasoningSeat):
    """Signs its thinking for the model and all that stands before it.

    It rejects a wrong signature, and with a budget a loop of calls that does not begin with thinking.
    """

    api = "anthropic"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        prefix: list[Any] = [body.get("system"), body.get("tools")]
        results, begins = 0, True
        for message in body["messages"]:
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if message["role"] == "user":
                results = 0 if blocks[0]["type"] != "tool_result" else results + len(blocks)
            elif any(block["type"] == "tool_use" for block in blocks):
                begins = blocks[0]["type"] in ("thinking", "redacted_thinking") or (begins and results > 0)
            for at, block in enumerate(blocks):
                if block["type"] == "thinking":
                    self._check(block["signature"], body["model"], [*prefix, *blocks[:at]])
                elif block["type"] == "redacted_thinking":
                    self._check(block["data"], body["model"], [*prefix, *blocks[:at]])
            prefix += [message["role"], *blocks]
        thinking = (body.get("thinking") or {}).get("type", "disabled")
        if thinking == "enabled" and results and not begins:
            raise refuse("Expected `thinking` or `redacted_thinking`, but found `tool_use`")
        written: list[dict[str, Any]] = []
        if thinking != "disabled":
            text = self.think(results)
            made = {"type": "thinking", "thinking": text, "signature": self._sign(body["model"], prefix)}
            written.append(made)
            hidden = self._sign(body["model"], [*prefix, made])
            written.append({"type": "redacted_thinking", "data": hidden})
        if results < CALLS:
            call_id = f"toolu_{digest(prefix)}"
            call = {"type": "tool_use", "id": call_id, "name": "weather", "input": {"step": results}}
            written += [{"type": "text", "text": "I look. "}, call]
        else:
            written.append({"type": "text", "text": "7 degrees"})
        reason = "tool_use" if results < CALLS else "end_turn"
        usage = {"input_tokens": 5, "output_tokens": 5}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
        return {**head, "content": written, "stop_reason": reason, "stop_sequence": None, "usage": usage}

    def _sign(self, model: str, prefix: list[Any]) -> str:
        return f"Eq{digest(self.url, model, prefix)}+/="

    def _check(self, signature: str, model: str, prefix: list[Any]) -> None:
        if signature != self._sign(model, prefix):
            raise refuse("Invalid `signature` in `thinking` block")
        self.returned += 1

    def split(self, answer: dict[str, Any]) -> Generator[dict[str, Any]]:
        yield {"type": "message_start", "message": {**answer, "content": [], "stop_reason": None}}
        for index, block in enumerate(answer["content"]):
            parts = {name: block[name] for name in ("thinking", "signature", "text") if name in block}
            start = {**block, **dict.fromkeys(parts, ""), **({"input": {}} if "input" in block else {})}
            yield {"type": "content_block_start", "index": index, "content_block": start}
            deltas = [{"type": f"{name}_delta", name: value} for name, value in parts.items()]
            if "input" in block:
                deltas.append({"type": "input_json_delta", "partial_json": json.dumps(block["input"])})
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        stop = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": stop, "usage": answer["usage"]}
        yield {"type": "message_stop"}


class ChatSeat(ReasoningSeat):
    """Sends reasoning in `field`, and requires it back in each message with calls, as DeepSeek does.

    It rejects reasoning that is not its model's.
    """

    api = "openai"
    field = "reasoning_content"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        results = 0
        for message in body["messages"]:
            results = {"user": 0, "tool": results + 1}.get(message["role"], results)
            fields = ("reasoning_content", "reasoning", "reasoning_details")
            unknown = {name for name in fields if message.get(name) and name != self.field}
            if unknown or any("extra_content" in call for call in message.get("tool_calls") or ()):
                raise refuse(f"unknown fields {unknown}")
            text = message.get(self.field)
            if text is not None:
                if not text.startswith(f"{body['model']} at {self.url}"):
                    raise refuse("foreign reasoning")
                self.returned += 1
            elif message.get("tool_calls") and any(self._is_own(call) for call in message["tool_calls"]):
                raise refuse(f"The `{self.field}` in the thinking mode must be passed back to the API")
        thought = f"{body['model']} at {self.url}: {self.think(results)}"
        message = {"role": "assistant", "content": "7 degrees", self.field: thought}
        if results < CALLS:
            function = {"name": "weather", "arguments": json.dumps({"step": results})}
            call = {
                "id": f"call_00_{digest(self.url, self.field, self.last['model'])[:6]}_{self.steps}",
                "type": "function",
            }
            message |= {"content": None, "tool_calls": [{**call, "function": function}]}
        reason = "tool_calls" if results < CALLS else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "real", "choices": [choice]}

    def _is_own(self, call: dict[str, Any]) -> bool:
        return str(call["id"]).startswith(f"call_00_{digest(self.url, self.field, self.last['model'])[:6]}")

    def split(self, answer: dict[str, Any]) -> Generator[dict[str, Any]]:
        message, head = answer["choices"][0]["message"], {**answer, "object": "chat.completion.chunk"}

        def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
            return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        yield chunk({"role": "assistant", "content": "", self.field: ""})
        for text in (message[self.field][:5], message[self.field][5:]):
            yield chunk({self.field: text})
        if message["content"]:
            yield chunk({"content": message["content"]})
        for index, call in enumerate(message.get("tool_calls") or ()):
            yield chunk({"tool_calls": [{**call, "index": index}]})
        yield chunk({}, answer["choices"][0]["finish_reason"])


class DeepSeekSeat(ChatSeat):
    """Requires reasoning in each message with calls, whoever made them."""

    def __init__(self, url: str = "https://api.deepseek.com/v1") -> None:
        super().__init__(url)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        for message in body["messages"]:
            if message.get("tool_calls") and not message.get(self.field):
                raise refuse(f"The `{self.field}` in the thinking mode must be passed back to the API")
        messages = [
            {name: message[name] for name in message if message[name] != " "} for message in body["messages"]
        ]
        return super().answer(path, {**body, "messages": messages})

    def _is_own(self, call: dict[str, Any]) -> bool:
        return False


class RouterSeat(ChatSeat):
    """Sends reasoning in `reasoning`, as OpenRouter and newer vLLM do, with an empty `reasoning_content`."""

    field = "reasoning"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        made = super().answer(path, body)
        message = made["choices"][0]["message"]
        made["choices"][0]["message"] = {"reasoning_content": "", **message}
        return made


class StrictSeat(ChatSeat):
    """OpenAI's own chat: it sends no reasoning, and rejects fields that it does not know."""

    is_strict = True

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        for message in body["messages"]:
            unknown = set(message) - {"role", "content", "tool_calls", "tool_call_id", "refusal", "name"}
            calls = message.get("tool_calls") or ()
            if unknown or any(set(call) - {"id", "type", "function"} for call in calls):
                raise refuse(f"Unknown parameter: {unknown}")
        made = super().answer(path, {**body, "messages": [*map(self._add_reasoning, body["messages"])]})
        del made["choices"][0]["message"][self.field]
        self.returned = 0
        return made

    def _add_reasoning(self, message: dict[str, Any]) -> dict[str, Any]:
        text = f"{self.last['model']} at {self.url}"
        return {**message, self.field: text} if message.get("tool_calls") else message

    def split(self, answer: dict[str, Any]) -> Generator[dict[str, Any]]:
        answer["choices"][0]["message"][self.field] = ""
        for chunk in super().split(answer):
            chunk["choices"][0]["delta"].pop(self.field, None)
            yield chunk


class GoogleSeat(ReasoningSeat):
    """Signs the first call of each step, and requires the signature back for the calls since the last
    question. It rejects a wrong one.
    """

    api = "google"

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        model = path.removeprefix("models/").partition(":")[0]
        results, missing = 0, False
        for turn in body["contents"]:
            parts = turn["parts"]
            if turn["role"] == "user":
                answered = sum("functionResponse" in part for part in parts)
                results, missing = (results + answered, missing) if answered else (0, False)
                continue
            calls = [part for part in parts if "functionCall" in part]
            for part in calls:
                signature = part.get("thoughtSignature")
                if signature not in (None, "skip_thought_signature_validator"):
                    if signature != self._sign(model, part["functionCall"]["args"]):
                        raise refuse("Invalid thought signature")
                    self.returned += 1
            missing = missing or bool(calls and not calls[0].get("thoughtSignature"))
        if missing:
            raise refuse("Function call is missing a thought_signature in functionCall parts")
        parts = [{"text": self.think(results), "thought": True}]
        if results < CALLS:
            args = {"step": results, "of": self.steps}
            call = {"name": "weather", "args": args, "id": f"g{self.steps}"}
            parts.append({"functionCall": call, "thoughtSignature": self._sign(model, args)})  # type: ignore[dict-item]
        else:
            parts.append({"text": "7 degrees"})
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 5, "candidatesTokenCount": 5, "totalTokenCount": 10}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}

    def _sign(self, model: str, args: Any) -> str:
        return f"Ci{digest(self.url, model, args)}+/="

    def split(self, answer: dict[str, Any]) -> Generator[dict[str, Any]]:
        (candidate,) = answer["candidates"]
        for part in candidate["content"]["parts"]:
            content = {"role": "model", "parts": [part]}
            yield {**answer, "candidates": [{"index": 0, "content": content}]}
        yield {**answer, "candidates": [{**candidate, "content": {"role": "model", "parts": []}}]}


class ResponsesSeat(ReasoningSeat, OpenAIClient):
    """OpenAI's own Responses.

    It rejects reasoning that this account's model did not encrypt, ids of texts and calls without the
    reasoning before them, and long ids of calls.
    """

    api = "openai"
    is_strict = False
    serves_responses = True

    def __init__(self, url: str = "https://a.invalid/v1", key: str = "k") -> None:
        ReasoningSeat.__init__(self, url)
        self.key = key

    def hash_key(self) -> str:
        return digest(self.key)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        results, known = 0, set[str]()
        for item in body["input"]:
            kind = item.get("type", "message")
            if kind == "reasoning":
                if item.get("encrypted_content") != self._encrypt(body["model"], item["id"]):
                    raise refuse("invalid_encrypted_content")
                known.add(item["id"].partition("_")[2])
                self.returned += 1
            elif item.get("role") == "user":
                results = 0
            elif str(item.get("id", "")).startswith(("fc_own", "msg_own")) and (
                item["id"].partition("_")[2] not in known
            ):
                raise refuse(f"Item {item['id']!r} was provided without its required 'reasoning' item")
            results += kind == "function_call_output"
            if not 0 < len(item.get("call_id", "x")) <= 64:
                raise refuse("string too long: call_id")
        name = f"own{self.steps}"
        thought = {"id": f"rs_{name}", "type": "reasoning", "summary": [], "status": None}
        thought["encrypted_content"] = self._encrypt(body["model"], thought["id"])
        if results < CALLS:
            arguments = json.dumps({"step": results})
            made = {"id": f"fc_{name}", "type": "function_call", "call_id": f"call_{name}"}
            made |= {"name": "weather", "arguments": arguments, "status": "completed"}
        else:
            part = {"type": "output_text", "text": "7 degrees", "annotations": [], "logprobs": []}
            made = {"id": f"msg_{name}", "type": "message", "role": "assistant", "content": [part]}
            made["status"] = "completed"
        usage = {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10}
        head = {"id": "resp_1", "object": "response", "created_at": 1, "model": body["model"]}
        head |= {"status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**head, "output": [thought, made], "usage": usage}

    def _encrypt(self, model: str, item_id: Any) -> str:
        return f"gAAAA{digest(self.url, self.key, model, item_id)}"

    def split(self, answer: dict[str, Any]) -> Generator[dict[str, Any]]:
        begun = {**answer, "output": [], "status": "in_progress"}
        yield {"type": "response.created", "response": begun}
        for index, item in enumerate(answer["output"]):
            for kind in ("added", "done"):
                yield {"type": f"response.output_item.{kind}", "output_index": index, "item": item}
        yield {"type": "response.completed", "response": answer}
