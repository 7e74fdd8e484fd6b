from __future__ import annotations

import pytest

from presage.errors import ConfigError
from presage.schedulers.slurm.feature_text import (
    FEATURES_VARIABLE,
    OPTIONS_VARIABLE,
    to_features,
    to_message,
)
from presage.schedulers.slurm.sbatch import check_arguments, job_variables
from tests.features import examples

FEATURES = examples.features()


def options(*arguments: str, environment=None, **settings) -> set[str]:
    variables = job_variables(FEATURES, arguments, environment or {}, **settings)
    assert to_features(to_message(variables[FEATURES_VARIABLE])) == FEATURES
    return set(variables[OPTIONS_VARIABLE].split(",")) - {""}


def test_pins_and_sharing_are_options():
    assert options("train.sh") == set()
    assert options("train.sh", pins=["time", "nice"], share=True) == {
        "pin-time", "pin-nice", "share",
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ["--signal=B:USR1@120", "train.sh"],
        ["--signal", "USR1@120", "train.sh"],
        ["--deadline=now+2hours", "train.sh"],
        ["--mail-type=BEGIN,TIME_LIMIT_90", "train.sh"],
    ],
)
def test_the_limit_of_a_job_that_slurm_signals_before_it_is_pinned(arguments):
    assert options(*arguments) == {"pin-time"}


def test_options_in_the_script_and_the_environment_count(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n#SBATCH --time=60\n#SBATCH --signal=USR1@60\npython train.py\n")
    assert options(str(script)) == {"pin-time"}
    script.write_text("#!/bin/sh\n#SBATCH --time=60\npython train.py --signal=USR1\n")
    assert options(str(script)) == set()
    assert options("train.sh", environment={"SBATCH_SIGNAL": "USR1@60"}) == {"pin-time"}


def test_nothing_to_submit_and_unknown_pins_are_errors():
    with pytest.raises(ConfigError, match="after --"):
        check_arguments([])
    with pytest.raises(ConfigError, match="time"):
        job_variables(FEATURES, ["train.sh"], {}, pins=["tme"])
