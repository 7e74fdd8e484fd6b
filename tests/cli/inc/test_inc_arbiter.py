"""``presage inc arbiter``: its options have the defaults of the arbiter."""

from __future__ import annotations

from dataclasses import MISSING, fields

import pytest

from presage.cli.scheduling.inc.arbiter import DomainOptions, ListenOptions
from presage.cli.scheduling.inc.options import PORT
from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.planner import PlannerOptions
from presage.collectives.arbiter.server.server import DEFAULT_PORT, MAX_STREAMS


def defaults(*classes):
    return {
        field.name: field.default
        for one in classes
        for field in fields(one)
        if field.default is not MISSING
    }


def test_the_command_has_the_defaults_of_the_arbiter():
    of_command = defaults(DomainOptions, ListenOptions)
    of_arbiter = defaults(ArbiterOptions, PlannerOptions)
    shared = of_command.keys() & of_arbiter.keys()

    assert shared == {"agreement", "lease_s", "horizon_s", "max_jobs"}
    assert {name: of_command[name] for name in shared} == {n: of_arbiter[n] for n in shared}
    assert (of_command["port"], of_command["max_ranks"]) == (DEFAULT_PORT, MAX_STREAMS)
    assert PORT == DEFAULT_PORT


@pytest.mark.parametrize(
    ("options", "values", "words"),
    [
        (ArbiterOptions, {"plan_s": 0.0}, "plan_s=0.0, must be above 0"),
        (ArbiterOptions, {"plan_s": float("nan")}, "plan_s=nan"),
        (PlannerOptions, {"horizon_s": 0.0}, "horizon_s=0.0"),
        (PlannerOptions, {"horizon_s": float("inf")}, "horizon_s=inf"),
        (PlannerOptions, {"margin": -1.0}, "margin=-1.0"),
        (PlannerOptions, {"min_window": 5, "max_window": 4}, "min_window=5, max_window=4"),
        (PlannerOptions, {"max_decisions": 0}, "max_decisions=0"),
    ],
)
def test_options_of_an_arbiter_out_of_range_are_rejected(options, values, words):
    with pytest.raises(ValueError, match=words):
        options(**values)
