"""Load: a workload's requests sent to a server, either so many at a time or as they would come from people."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from engine.bench.client import Answer, Client
from engine.bench.workloads import Text, Workload, turns


@dataclass(frozen=True)
class Load:
    """``requests`` conversations.  ``concurrency``: so many at once, the next when one ends (closed loop); with ``rate``, one
    begins after another whether or not they end (open loop), at random times, ``rate`` a second on average."""

    requests: int
    concurrency: int = 1
    rate: float | None = None
    seed: int = 0

    async def run(self, client: Client, workload: Workload, letters: float) -> list[Answer]:
        """The answers of every turn, in the order in which their requests were sent."""
        text = Text(letters, f"{self.seed} {workload.name}")
        conversations = [list(turns(workload, text)) for _ in range(self.requests)]
        if self.rate is None:
            room = asyncio.Semaphore(self.concurrency)

            async def within(said: list[str]) -> list[Answer]:
                async with room:
                    return await converse(client, workload, said)

            answers = await asyncio.gather(*(within(said) for said in conversations))
        else:
            begin, tasks = random.Random(self.seed), []
            for said in conversations:
                tasks.append(asyncio.create_task(converse(client, workload, said)))
                await asyncio.sleep(begin.expovariate(self.rate))
            answers = await asyncio.gather(*tasks)
        return sorted((answer for one in answers for answer in one), key=lambda answer: answer.sent)


async def converse(client: Client, workload: Workload, said: list[str]) -> list[Answer]:
    """All turns of one conversation; it ends early with a turn that fails."""
    answers, messages = [], []
    for turn, text in enumerate(said):
        messages.append({"role": "user", "content": text})
        prompt = messages if workload.chat else text
        answer = await client.ask(Answer(workload.name, turn, 0.0), workload.output, prompt)
        answers.append(answer)
        if answer.error:
            break
        messages.append({"role": "assistant", "content": answer.text})
    return answers
