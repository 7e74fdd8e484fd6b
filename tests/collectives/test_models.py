"""The model of the in-band agreement, checked by SPIN: a second opinion (slow tier)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.slow_tests import all_faults
from tests.support.state_counts import PROPERTY

MODEL = Path(__file__).parent / "models" / "in_band.pml"
SAFETY = ("-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE")

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("cc") is None,
    reason="needs spin and a C compiler: apt-get install spin gcc",
)


def verify(
    folder: Path,
    *,
    defines: tuple[str, ...],
    compile_with: tuple[str, ...],
    run_with: tuple[str, ...],
) -> tuple[int, int, str]:
    """Return the numbers of errors and states, and the output of the verifier."""
    shutil.copy(MODEL, folder)
    spin = ["spin", "-a", *defines, MODEL.name]
    compiler = ["cc", "-w", "-O2", *compile_with, "-o", "pan", "pan.c"]
    for command in (spin, compiler):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    verifier = ["./pan", "-m100000", *run_with]
    run = subprocess.run(verifier, cwd=folder, check=True, capture_output=True, timeout=250)
    output = run.stdout.decode()
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"(\d+) states, stored", output)
    assert errors, output
    assert states, output
    return int(errors[1]), int(states[1]), output


@all_faults
@needs_spin
def test_no_state_of_the_model_breaks_a_law(tmp_path, record_property):
    errors, states, output = verify(tmp_path, defines=(), compile_with=SAFETY, run_with=())

    record_property(PROPERTY, f"in_band.pml, by SPIN: {states:,} states, {errors} errors")
    assert errors == 0, output
    assert states > 1_000_000


@all_faults
@needs_spin
def test_all_ranks_of_the_model_finish(tmp_path):
    errors, states, output = verify(
        tmp_path, defines=("-DEARLY=0",), compile_with=("-DNFAIR=3",), run_with=("-a", "-f")
    )

    assert errors == 0, output
    assert states > 1000


@all_faults
@needs_spin
def test_a_model_without_the_fence_breaks_a_law(tmp_path):
    errors, _, output = verify(tmp_path, defines=("-DNO_FENCE",), compile_with=SAFETY, run_with=())

    assert errors == 1
    assert "assertion violated" in output
