"""Commands of users and operators on a live cluster of processes."""

from __future__ import annotations

import pytest

from tests.support.in_process import presage

WIDE = {"COLUMNS": "300"}


@pytest.fixture
def run(cluster):
    """Return a function that runs `presage cluster` on the cluster, and returns its result."""

    def of(command, *words, **variables):
        at = {"PRESAGE_CLUSTER": cluster.target}
        return presage("cluster", command, *words, **(at | WIDE | variables))

    return of


@pytest.fixture
def ok(run):
    """Return a function that runs a command that must succeed, and returns its output."""

    def of(*words, **variables):
        done = run(*words, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return of


@pytest.fixture
def refused(run):
    """Return a function that runs a command that must fail in one line, and returns the line."""

    def of(*words, **variables):
        done = run(*words, **variables)
        assert done.returncode != 0
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    return of
