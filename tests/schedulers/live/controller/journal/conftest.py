"""Fixtures of journals on each kind of database."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.schedulers.live.controller.journal.journal import Journal
from tests.schedulers.live.controller.journal.journals import needs_postgres, sql
from tests.support.postgres import postgres


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    # Not in a folder of pytest's, which it keeps to their owner.
    with (
        tempfile.TemporaryDirectory(prefix="presage-postgres-") as place,
        postgres(Path(place), "presage") as url,
    ):
        yield url


@pytest.fixture
def postgres_url(
    server: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return the URL of a journal in a new schema; its key is in the test's folder."""
    monkeypatch.chdir(tmp_path)
    name = f"s{abs(hash(request.node.nodeid))}"
    sql(server, f"CREATE SCHEMA {name}")
    return f"{server}?options=-csearch_path%3D{name}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/journal.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def journal(url: str) -> Iterator[Journal]:
    with Journal.open(url) as opened:
        yield opened
