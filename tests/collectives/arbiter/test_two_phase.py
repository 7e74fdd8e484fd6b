"""The two-phase agreement in the arbiter: ranks that end during a round block no other job."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from presage.collectives.arbiter.wire import from_arbiter
from presage.collectives.core.messages import Prepare, Update
from presage.collectives.v1 import arbiter_pb2 as pb
from tests.collectives.arbiter.test_membership import (
    OPTIONS,
    MachineControl,
    report,
    running,
)
from tests.collectives.arbiter.test_replaced_jobs import registered
from tests.support.waiting import async_stays_true, async_wait_until

TWO_PHASE = replace(OPTIONS, agreement="two_phase")


class Ranks:
    """Two ranks of a job that take part in rounds.

    Parameters
    ----------
    confirms : bool
        Whether they report that they have applied an update; if not, they end before.
    numbers : list of int
        Numbers that rank 1 acknowledges, one for each round and the last one from then on; rank 0
        acknowledges 20.
    """

    def __init__(self, arbiter, name, *, confirms=True, numbers=(20,)):
        self.arbiter, self.name, self.confirms = arbiter, name, confirms
        self.numbers = list(numbers)
        self.updates, self.tasks, self.streams = [], [], []

    async def connect(self):
        for rank in range(2):
            message = registered(rank, name=self.name)
            message.agreement = "two_phase"
            stream = await self.arbiter.connect(message)
            await self.arbiter.receive(stream, report(20))
            self.streams.append(stream)
            self.tasks.append(asyncio.create_task(self.serve(stream)))

    async def serve(self, stream):
        while (message := await stream.next()) is not None:
            found = from_arbiter(message, self.name, stream.rank)
            if isinstance(found, Prepare):
                ack = pb.Ack(tag=found.tag, number=self.number_of(stream.rank))
                await self.arbiter.receive(stream, pb.RankMessage(ack=ack))
            elif isinstance(found, Update):
                self.updates.append(found)
                if self.confirms:
                    done = pb.Done(tag=found.tag)
                    await self.arbiter.receive(stream, pb.RankMessage(done=done))

    def number_of(self, rank):
        if rank == 0:
            return 20
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]

    async def end(self):
        for task, stream in zip(self.tasks, self.streams, strict=True):
            task.cancel()
            await self.arbiter.disconnect(stream, has_left=False)


def jobs_of(arbiter):
    return {plan.job for plan in arbiter.controller.jobs}


def test_i7_ranks_that_end_between_acknowledgement_and_update_block_no_other_job(tmp_path):
    async def scenario():
        control = MachineControl()
        async with running(tmp_path / "a.db", control, TWO_PHASE) as arbiter:
            dead = Ranks(arbiter, "dead", confirms=False)
            await dead.connect()
            await async_wait_until(lambda: dead.updates)
            await dead.end()
            living = Ranks(arbiter, "living")
            await living.connect()
            await async_wait_until(lambda: living.updates and arbiter.controller.is_stable)
            assert jobs_of(arbiter) == {"living"}
            assert set(dict(control.state.floors)) == {"living"}

    asyncio.run(scenario())


def test_i7_the_last_job_that_ends_leaves_the_switch_and_no_round_under_way(tmp_path):
    async def scenario():
        control = MachineControl()
        async with running(tmp_path / "a.db", control, TWO_PHASE) as arbiter:
            last = Ranks(arbiter, "last")
            await last.connect()
            await async_wait_until(lambda: last.updates and arbiter.controller.is_stable)
            await last.end()
            await async_wait_until(
                lambda: not control.state.floors and arbiter.controller.is_stable
            )
            tag = arbiter.controller.tag
            assert await async_stays_true(lambda: arbiter.controller.tag == tag, 1.0)

    asyncio.run(scenario())


def test_i6_a_round_that_unequal_numbers_end_is_tried_again_at_once(tmp_path):
    async def scenario():
        slow = replace(TWO_PHASE, plan_s=60.0)
        async with running(tmp_path / "a.db", MachineControl(), slow) as arbiter:
            job = Ranks(arbiter, "job", numbers=(19, 19, 20))
            await job.connect()
            arbiter.planned_s = -1e9
            await async_wait_until(lambda: job.updates)
            assert arbiter.controller.tag == 3

    asyncio.run(scenario())
