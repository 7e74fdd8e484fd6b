"""``grpc.health.v1`` with its own stubs and with gRPC's load balancer."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc as pb_grpc

from presage.serving.admission.unfinished_requests import UnfinishedRequests
from presage.serving.server.health import SERVICE_NAME, Health
from tests.serving.support.aio_server import answering, ended
from tests.support.waiting import async_stays_true, async_wait_until

NAMES = ("", "presage.v1.PredictionService", "memory")
SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


@asynccontextmanager
async def served():
    health = Health(NAMES)
    async with answering(health.handlers(UnfinishedRequests())) as channel:
        yield health, pb_grpc.HealthStub(channel)


def named(name: str) -> pb.HealthCheckRequest:
    return pb.HealthCheckRequest(service=name)


async def read(watch):
    response = await asyncio.wait_for(watch.read(), 5)
    assert response is not grpc.aio.EOF
    return response.status


async def remaining_statuses(watch) -> list[int]:
    """Return the statuses that a watcher still receives after the server ended its watch."""

    statuses_read = []
    while (response := await asyncio.wait_for(watch.read(), 5)) is not grpc.aio.EOF:
        statuses_read.append(response.status)
    assert await watch.code() is grpc.StatusCode.OK
    return statuses_read


def test_the_service_has_the_standard_name():
    assert SERVICE_NAME == "grpc.health.v1.Health"


def test_every_name_reports_its_changes():
    async def main():
        async with served() as (health, stub):

            async def statuses():
                return [(await stub.Check(named(name))).status for name in NAMES]

            assert await statuses() == [NOT_SERVING] * 3
            health.set_serving()
            assert await statuses() == [SERVING] * 3
            health.close()
            assert await statuses() == [NOT_SERVING] * 3

    asyncio.run(main())


def test_an_unknown_name_is_not_found_and_not_repeated():
    async def main():
        async with served() as (_, stub):
            assert await ended(stub.Check(named("s3cret"))) == (
                grpc.StatusCode.NOT_FOUND,
                "unknown service name; use one of '', 'presage.v1.PredictionService', 'memory'",
            )

    asyncio.run(main())


def test_a_watcher_receives_the_status_and_every_change_until_the_server_closes():
    async def main():
        async with served() as (health, stub):
            watch = stub.Watch(named("memory"))
            assert await read(watch) == NOT_SERVING
            health.set_serving()
            assert await read(watch) == SERVING
            health.set_serving()  # no change, which is not sent
            health.close()
            assert await remaining_statuses(watch) == [NOT_SERVING]

    asyncio.run(main())


def test_a_watcher_of_an_unknown_name_waits_for_it():
    async def main():
        async with served() as (health, stub):
            watch = stub.Watch(named("thesis"))
            assert await read(watch) == UNKNOWN
            health.set_serving()
            waiting = asyncio.ensure_future(watch.read())
            assert await async_stays_true(lambda: not waiting.done(), 0.05)
            health.close()
            assert await waiting is grpc.aio.EOF

    asyncio.run(main())


def test_a_watcher_after_the_close_receives_the_status_and_ends():
    async def main():
        async with served() as (health, stub):
            health.set_serving()
            health.close()
            assert await remaining_statuses(stub.Watch(named(""))) == [NOT_SERVING]
            assert await remaining_statuses(stub.Watch(named("thesis"))) == [UNKNOWN]

    asyncio.run(main())


@pytest.mark.parametrize("leaving", [0, 1])
def test_a_watcher_that_disconnects_does_not_affect_others(leaving):
    async def main():
        async with served() as (health, stub):
            watches = [stub.Watch(named("")) for _ in range(2)]
            for watch in watches:
                assert await read(watch) == NOT_SERVING
            watches.pop(leaving).cancel()
            await stub.Check(named(""))  # on the same connection: the cancellation has arrived
            health.set_serving()
            assert await read(watches[0]) == SERVING
            health.close()
            assert await remaining_statuses(watches[0]) == [NOT_SERVING]

    asyncio.run(main())


def test_a_watcher_that_never_reads_does_not_block_others():
    async def main():
        async with served() as (health, stub):
            idle, watch = (stub.Watch(named("")) for _ in range(2))
            await idle.wait_for_connection()
            assert await read(watch) == NOT_SERVING
            health.set_serving()
            assert await read(watch) == SERVING
            assert (await stub.Check(named(""))).status == SERVING
            health.close()
            assert await remaining_statuses(watch) == [NOT_SERVING]
            # The content of its connection: all statuses, or only the last.
            assert (await remaining_statuses(idle))[-1] == NOT_SERVING

    asyncio.run(main())


def test_many_watchers_all_receive_a_change():
    async def main():
        async with served() as (health, stub):
            watches = [stub.Watch(named(NAMES[i % 3])) for i in range(60)]
            assert {await read(watch) for watch in watches} == {NOT_SERVING}
            health.set_serving()
            assert {await read(watch) for watch in watches} == {SERVING}
            health.close()
            assert all([await remaining_statuses(watch) == [NOT_SERVING] for watch in watches])

    asyncio.run(main())


def test_grpcs_load_balancer_sends_calls_only_while_the_status_is_serving():
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "presage.v1.PredictionService"},
    }

    async def main():
        health = Health(NAMES)
        options = [("grpc.service_config", json.dumps(config))]
        async with answering(health.handlers(UnfinishedRequests()), options=options) as channel:
            stub = pb_grpc.HealthStub(channel)  # any method: what is tested is that it is sent
            code, _ = await ended(stub.Check(named(""), timeout=5))
            assert code is grpc.StatusCode.UNAVAILABLE
            health.set_serving()
            assert (await stub.Check(named(""), wait_for_ready=True, timeout=5)).status == SERVING
            health.close()

            async def rejected() -> bool:
                try:
                    await stub.Check(named(""), timeout=5)
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE
                    return True
                return False

            await async_wait_until(rejected)

    asyncio.run(main())
