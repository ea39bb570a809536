"""Send many jobs at once and show each answer as it is made, piece by piece.

    python examples/fanout.py apples pears plums

It needs a seat with a model in the grid. The seats' slots decide how many of the jobs run at one time; the
others wait their turn in the grid, not here.
"""

import asyncio
import sys

import gridq

topics = sys.argv[1:] or ["apples", "pears", "plums"]

# One stage: a model goes on from the prompt. Any model will do, as none is named.
graph = {"root": {"op": "Stage", "id": "llm_complete", "config": {"max_tokens": 24}}}


async def tell(client: gridq.AsyncClient, topic: str) -> None:
    # `stream=True` keeps the pieces of the answer for whoever asks for them.
    job = await client.submit(graph, {"prompt": f"One sentence about {topic}:"}, stream=True)
    async for piece in client.stream(job):  # ends with the job, raising its error if it has one
        print(f"{topic:>10} | {piece.value}", flush=True)
    print(f"{topic:>10} = {await client.result(job)}", flush=True)


async def main() -> None:
    async with gridq.AsyncClient() as client:
        await asyncio.gather(*(tell(client, topic) for topic in topics))


try:
    asyncio.run(main())
except gridq.GridError as error:
    sys.exit(str(error))
