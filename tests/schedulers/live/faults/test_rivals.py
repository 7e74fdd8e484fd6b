"""Tests of duplicate agents and controllers, invalid tokens and lost connections."""

from __future__ import annotations

import itertools
import random
import signal
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from presage.errors import ServiceError
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.local_token import account
from presage.serving.authentication.token_file import add_token
from presage.serving.client.credentials import Credentials
from tests.schedulers.live.cluster import PRESAGE, until
from tests.schedulers.live.scenario import restarted
from tests.support.postgres import postgres, postgres_programs
from tests.support.slow_tests import all_faults

needs_postgres = pytest.mark.skipif(
    not (postgres_programs() and find_spec("psycopg")), reason="needs PostgreSQL and psycopg"
)


@all_faults
def test_the_second_of_two_agents_with_one_name_is_rejected(cluster):
    cluster.up("n0")
    cluster.submit(cluster.job("long", 100, 0.05))
    first = cluster.runs("long")

    second = cluster.start("second", [
        *PRESAGE, "agent", "--node", "n0", "--controller", cluster.target,
        "--state", cluster.folder / "second",
    ])  # fmt: skip

    assert second.wait(60) != 0
    assert (
        "another agent has the node name 'n0'" in cluster.log("second").read_text().splitlines()[-1]
    )
    assert cluster.over("long") == {"long": pb.FINISHED}
    assert cluster.starts("long")[0].pid == first.pid
    cluster.check(run_once=["long"])


@all_faults
def test_an_agent_on_the_state_folder_of_another_is_rejected(cluster):
    cluster.up("n0")
    first = cluster.running["n0"]

    assert cluster.agent("n0").wait(60) != 0

    said = cluster.log("n0").read_text()  # the first one writes there, too
    assert "another agent uses it" in said
    assert first.poll() is None
    cluster.running["first"] = first


@all_faults
def test_an_agent_with_an_invalid_token_ends_and_its_jobs_continue(cluster):
    tokens, agents, wrong = (cluster.folder / name for name in ("tokens", "agent", "wrong"))
    limits = {"node": "n0", "devices": "cpu-1:1"}
    agents.write_text(add_token(tokens, "n0", ["agent"], limits))
    wrong.write_text("presage-no-token")
    secret = add_token(tokens, "user", ["submit", "admin"], {"run-as": account()})
    cluster.client = ClusterClient(cluster.target, credentials=Credentials(token=secret))
    cluster.controller("--tokens", tokens)
    cluster.agent("n0", "--token-file", agents)
    cluster.connected("n0")
    cluster.submit(cluster.job("long", 100, 0.05))
    cluster.runs("long")
    cluster.kill("n0")

    assert cluster.agent("n0", "--token-file", wrong).wait(60) != 0
    assert "Traceback" not in cluster.log("n0").read_text()
    cluster.agent("n0", "--token-file", agents)

    assert cluster.over("long") == {"long": pb.FINISHED}
    cluster.check(run_once=["long"])


@all_faults
def test_a_controller_on_the_journal_of_another_is_rejected(cluster):
    cluster.up()
    second = cluster.start(
        "second", [*PRESAGE, "controller", "--journal", cluster.journal, "--port", 0]
    )

    assert second.wait(60) != 0
    said = cluster.log("second").read_text().splitlines()[-1]
    assert "is open in process" in said and "stop that controller" in said
    cluster.submit(cluster.job("a"))


def test_clients_that_disconnect_during_a_call_leave_no_partial_jobs(cluster):
    cluster.up("n0")
    draw = random.Random(0)
    names = [f"j{i}" for i in range(100)]
    for name in names:
        timeout_s = draw.uniform(0.001, 0.03)
        with ClusterClient(cluster.target, timeout_s=timeout_s) as client, suppress(ServiceError):
            client.submit([cluster.job(name, 1, 0.0)])
            cluster.acknowledged.add(name)
    before = cluster.phases().keys()
    assert before >= cluster.acknowledged
    cluster.submit(*(cluster.job(name, 1, 0.0) for name in names))
    cluster.cancel(*names)
    cluster.over(*names)

    cluster.kill("controller")
    submitted = [row["job_id"] for row in cluster.records() if row["type"] == "Submitted"]
    assert sorted(submitted) == sorted(names)
    cluster.controller()
    cluster.over(*names)
    cluster.check()


@all_faults
@needs_postgres
def test_a_database_that_loses_its_connections_loses_no_job(cluster):
    import psycopg

    with (
        tempfile.TemporaryDirectory(prefix="presage-postgres-") as place,
        postgres(Path(place), "presage") as url,
    ):
        cluster.journal = url
        cluster.environment["PRESAGE_JOURNAL_KEY"] = str(cluster.folder / "journal.key")
        cluster.agent("n0")
        every = itertools.repeat((*PRESAGE, "controller"))
        with restarted(cluster, every), psycopg.connect(url, autocommit=True) as other:
            until(lambda: [cluster.all()])
            draw, ends_s = random.Random(0), time.monotonic() + 6
            number = 0
            while time.monotonic() < ends_s:
                if draw.random() < 0.2:
                    other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name LIKE 'presage controller%'"
                    )
                with suppress(ServiceError):
                    cluster.client.submit([cluster.job(f"j{number}", 1, 0.0)])
                    cluster.acknowledged.add(f"j{number}")
                number += 1
            assert cluster.acknowledged
            until(lambda: cluster.phases().keys() >= cluster.acknowledged)
            names = sorted(cluster.acknowledged)
            cluster.cancel(*names)
            cluster.over(*names)
            cluster.check()
        cluster.kill("controller", signal.SIGTERM)
