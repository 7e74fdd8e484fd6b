"""Test of an elastic job under a controller whose journal is in PostgreSQL."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

from tests.schedulers.live.controller.journal.journals import needs_postgres
from tests.support.postgres import postgres
from tests.support.slow_tests import all_faults


@all_faults
@needs_postgres
def test_a_second_controller_takes_over_from_a_journal_in_postgresql(elastic):
    with (
        tempfile.TemporaryDirectory(prefix="presage-postgres-") as place,
        postgres(Path(place), "presage") as url,
    ):
        elastic.journal, key = url, elastic.folder / "journal.key"
        elastic.controller("--journal-key", key)
        for node in ("n0", "n1"):
            elastic.agent(node)
        elastic.connected("n0", "n1")
        elastic.submit(elastic.elastic("wide", 20, (1, 3, 3)))
        elastic.trains("wide", 3)
        workers = elastic.workers("wide")

        elastic.kill("controller")
        elastic.signal(elastic.leader_pid("wide"), signal.SIGKILL)
        shutil.rmtree(elastic.leaders)
        elastic.controller("--journal-key", key)

        elastic.trains("wide", 3)
        assert elastic.workers("wide") == workers
        assert elastic.ends("wide") == 0
        elastic.kill("controller", signal.SIGTERM)
