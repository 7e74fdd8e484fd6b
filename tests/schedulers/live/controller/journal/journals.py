"""Databases of journals, and manual changes of their content."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.postgres import postgres_programs

MISSING = "" if postgres_programs() and find_spec("psycopg") else "PostgreSQL and psycopg"
NEEDS = f"needs {MISSING}; apt-get install postgresql, pip install 'psycopg[binary]'"
needs_postgres = pytest.mark.skipif(bool(MISSING), reason=NEEDS)


def sql(url: str, *statements: str) -> list[Any]:
    """Run SQL statements; return the rows of the last one."""
    if url.startswith("postgresql"):
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            done = [connection.execute(statement) for statement in statements][-1]
            return done.fetchall() if done.description else []
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as database:
        return [database.execute(statement) for statement in statements][-1].fetchall()
