"""Submit many jobs at once and show each answer while it is generated.

    python examples/fanout.py apples pears plums

The grid needs a seat with a model. The slots of its seats decide how many jobs run at the same time; the
others wait in the grid, not in this program.
"""

import asyncio
import sys

import gridq

topics = sys.argv[1:] or ["apples", "pears", "plums"]

# One stage, in which a model completes the prompt. It names no model, so any will do.
graph = {"root": {"op": "Stage", "id": "llm_complete", "config": {"max_tokens": 24}}}


async def show_answer(client: gridq.AsyncClient, topic: str) -> None:
    # With `stream=True` the grid keeps the pieces of the answer, so that clients can read them.
    job = await client.submit(graph, {"prompt": f"One sentence about {topic}:"}, stream=True)
    async for piece in client.stream(job):  # ends with the job, and raises the job's error
        print(f"{topic:>10} | {piece.value}", flush=True)
    print(f"{topic:>10} = {await client.result(job)}", flush=True)


async def main() -> None:
    async with gridq.AsyncClient() as client:
        await asyncio.gather(*(show_answer(client, topic) for topic in topics))


try:
    asyncio.run(main())
except gridq.GridError as error:
    sys.exit(str(error))
