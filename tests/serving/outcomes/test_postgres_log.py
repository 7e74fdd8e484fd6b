"""Outcome log in PostgreSQL: what only a database does, and two servers with one log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from presage.errors import ConfigError, OutcomeLogError
from presage.features.device.device import catalogue
from presage.serving.client.client import PresageClient
from presage.serving.outcomes.outcome import Outcome
from presage.serving.outcomes.outcome_log import (
    Appended,
    OutcomeLog,
    last_position,
    read_outcomes,
    withdraw,
)
from presage.system.files.log_address import log_address, log_name
from tests.features.examples import features
from tests.serving.conftest import make_release
from tests.serving.outcomes.log_support import append, keys
from tests.serving.support.processes import serving
from tests.support.postgres import create_database, postgres, postgres_programs, restart

ROOT = Path(__file__).parents[3]
psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: no log in PostgreSQL")
pytestmark = pytest.mark.skipif(
    postgres_programs() is None, reason="PostgreSQL is not installed: no log in it"
)


@pytest.fixture(scope="module")
def server():
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # PostgreSQL's user looks into it
        with postgres(Path(folder), "first") as url:
            yield url, Path(folder)


@pytest.fixture
def address(server, request):
    return create_database(server[0], f"log{abs(hash(request.node.name))}")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE presage_outcomes SET message = ''",
        "DELETE FROM presage_outcomes",
        "TRUNCATE presage_outcomes",
        "INSERT INTO presage_outcomes VALUES (7, 'a', 0, '', '') "
        "ON CONFLICT (sha256(idempotency_key)) DO UPDATE SET message = ''",
    ],
)
def test_no_row_is_changed_or_removed(address, statement):
    with closing(OutcomeLog(address)) as log:
        append(log, ("a", b"first"))
        with psycopg.connect(address) as database, pytest.raises(psycopg.Error):
            database.execute(statement)
        assert [row.message for row in read_outcomes(address)] == [b"first"]


def test_a_reader_never_misses_a_row_of_a_slow_writer(address):
    with closing(OutcomeLog(address)) as log, psycopg.connect(address) as slow:
        append(log, ("a", b""))
        slow.execute("SELECT pg_advisory_xact_lock(7274695817350)")
        pending = log.append([("b", b"")], reported_by="")
        time.sleep(0.3)  # it must not be written before the other one ends
        slow.execute("INSERT INTO presage_outcomes VALUES (2, 'slow', 0, '', '')")
        assert keys(address) == ["a"]
        slow.commit()
        pending.result(timeout=10)
    assert keys(address) == ["a", "slow", "b"]


def test_a_database_that_restarts_fails_reports_and_then_takes_them(server, address):
    with closing(OutcomeLog(address)) as log:
        append(log, ("before", b""))
        restart(server[1])
        failures = 0
        while True:
            try:
                found = append(log, ("after", b""))
                break
            except OutcomeLogError as error:
                assert "cannot be" in str(error)
                failures += 1
        assert failures == 1
        assert found == Appended(1, 0)
    assert keys(address) == ["before", "after"]


def test_positions_have_no_gaps_after_repeated_reports(address):
    with closing(OutcomeLog(address)) as log:
        for _ in range(3):
            append(log, *((str(i), b"") for i in range(50)))
        append(log, ("new", b""))

    assert [row.position for row in read_outcomes(address)] == [*range(1, 52)]
    assert last_position(address) == 51


def test_a_role_that_may_only_read_and_insert_can_write_an_existing_log(address):
    OutcomeLog(address).close()
    role = f"r{abs(hash(address))}"
    with psycopg.connect(address) as database:
        database.execute(f"CREATE ROLE {role} LOGIN")
        database.execute(f"GRANT SELECT, INSERT ON presage_outcomes, presage_withdrawals TO {role}")

    with closing(OutcomeLog(address.replace("postgres@", f"{role}@"))) as log:
        assert append(log, ("a", b"")) == Appended(1, 0)
        assert withdraw(address, keys=["a"]) == 1


def test_options_of_the_url_are_kept(address):
    with psycopg.connect(address) as database:
        database.execute("CREATE SCHEMA mine")
    OutcomeLog(f"{address}?options=-csearch_path%3Dmine").close()

    with psycopg.connect(address) as database:
        assert database.execute("SELECT to_regclass('mine.presage_outcomes')").fetchone() != (None,)


def test_a_missing_log_is_an_error_and_is_not_created(address):
    for use in (keys, last_position, lambda one: withdraw(one, keys=["a"])):
        with pytest.raises(OutcomeLogError, match=r"does not exist.*the server's --outcomes"):
            use(address)
    with psycopg.connect(address) as database:
        assert database.execute("SELECT to_regclass('presage_outcomes')").fetchone() == (None,)


def test_a_database_that_cannot_be_reached_is_an_error_without_a_password():
    address = log_address("postgresql://ann:secret@127.0.0.1:1/log?connect_timeout=1")

    for use in (OutcomeLog, keys):
        with pytest.raises(OutcomeLogError, match=r"127\.0\.0\.1:1/log cannot be") as caught:
            use(address)
        assert "secret" not in str(caught.value)
    assert log_name(address) == "postgresql://127.0.0.1:1/log"


@pytest.mark.parametrize("password", ["se?cret", "se#cret", "se/cret", "p%ssword", "[x", "a@b"])
def test_no_message_has_a_part_of_a_password(password):
    address = f"postgresql://ann:{password}@127.0.0.1:1/log?connect_timeout=1"

    with pytest.raises(OutcomeLogError) as caught:
        keys(address)
    assert log_name(address) == "postgresql://127.0.0.1:1/log"
    assert not any(part in str(caught.value) for part in (password, "cret", "%ss"))


@pytest.mark.parametrize("text", ["postgresql+psycopg://h/db", "PostgreSQL://h/db", "mysql://h/db"])
def test_urls_of_another_kind_are_no_files(text):
    with pytest.raises(ConfigError, match="begins with postgresql://"):
        log_address(text)


def test_two_servers_share_one_log(address, tmp_path):
    release = make_release(tmp_path / "release").folder
    options = ("--release", str(release), "--outcomes", str(address))
    one, other = (
        Outcome(key, features(), catalogue()["t4"], step_time_median_s=0.1)
        for key in ("job-1", "job-2")
    )
    with ExitStack() as stack:
        clients = [
            stack.enter_context(PresageClient(stack.enter_context(serving(*options)).target))
            for _ in range(2)
        ]
        first, second = (client.report([one]) for client in clients)
        assert (first.accepted, second.duplicates) == (1, 1)
        clients[1].report([other])
    assert keys(address) == ["job-1", "job-2"]

    (tmp_path / "params.yaml").symlink_to(ROOT / "params.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "presage", "outcomes", "ingest", str(address), "--to", "tables"],
        cwd=tmp_path, env=os.environ, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tables" / "quarantine.jsonl").exists()
