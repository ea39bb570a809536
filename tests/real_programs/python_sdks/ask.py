"""Ask a grid by the defaults of three Python packages: OpenAI Agents, pydantic-ai and LangChain.

Use: `ask.py URL MODEL`. Prints a JSON object: for each package its answer, the answer as a stream, the answer
to a second turn, and the cities for which it called its tool.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import agents
import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

FIRST, SECOND = "so it goes on", "and on"


async def ask_agents(url: str, model: str) -> dict[str, Any]:
    """Ask by OpenAI Agents."""
    agents.set_tracing_disabled(True)
    agents.set_default_openai_client(openai.AsyncOpenAI(base_url=url, api_key="none"), use_for_tracing=False)
    cities: list[str] = []

    @agents.function_tool
    def weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return f"sun in {city}"

    agent = agents.Agent(name="a", instructions="Be brief.", model=model, tools=[weather])
    ran = await agents.Runner.run(agent, FIRST, max_turns=4)
    streamed = agents.Runner.run_streamed(agent, FIRST, max_turns=4)
    async for _ in streamed.stream_events():
        pass
    history = [*ran.to_input_list(), {"role": "user", "content": SECOND}]
    again = await agents.Runner.run(agent, history, max_turns=4)
    return _report(ran.final_output, streamed.final_output, again.final_output, cities)


async def ask_pydantic_ai(url: str, model: str) -> dict[str, Any]:
    """Ask by pydantic-ai."""
    provider = OpenAIProvider(base_url=url, api_key="none")
    agent = Agent(OpenAIResponsesModel(model, provider=provider), instructions="Be brief.")
    cities: list[str] = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return f"sun in {city}"

    ran = await agent.run(FIRST)
    async with agent.run_stream(FIRST) as stream:
        streamed = "".join([piece async for piece in stream.stream_text(delta=True)])
    again = await agent.run(SECOND, message_history=ran.all_messages())
    return _report(ran.output, streamed, again.output, cities)


async def ask_langchain(url: str, model: str) -> dict[str, Any]:
    """Ask by LangChain, which leaves it to its caller to run a tool."""
    chat = ChatOpenAI(model=model, base_url=url, api_key="none", use_responses_api=True)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    cities: list[str] = []

    async def run(messages: list[Any]) -> Any:
        answer = await chat.bind_tools([tool]).ainvoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return answer
        for call in answer.tool_calls:
            cities.append(call["args"]["city"])
            result = f"sun in {call['args']['city']}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return await run(messages)

    messages: list[Any] = [HumanMessage(FIRST)]
    ran = await run(messages)
    streamed = "".join([piece.text async for piece in chat.astream(messages[:1])])
    again = await run([*messages, HumanMessage(SECOND)])
    return _report(ran.text, streamed, again.text, cities)


def _report(first: str, streamed: str, second: str, cities: list[str]) -> dict[str, Any]:
    return {"first": first.strip(), "streamed": streamed.strip(), "second": second.strip(), "cities": cities}


async def main(url: str, model: str) -> None:
    asked = {"agents": ask_agents, "pydantic-ai": ask_pydantic_ai, "langchain": ask_langchain}
    print(json.dumps({name: await ask(url, model) for name, ask in asked.items()}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
