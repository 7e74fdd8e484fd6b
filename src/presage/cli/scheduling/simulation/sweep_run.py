"""The simulations of ``presage sweep``, and their results."""

from __future__ import annotations

from pathlib import Path

from presage.cli.output.json_output import print_json
from presage.cli.output.simulation import print_compared
from presage.errors import ConfigError, PresageError
from presage.system.text.terminal import say


def run_and_print(
    path: Path, folder: Path, workers: int, ray: str | None, *, as_json: bool
) -> None:
    """Run a sweep, write its outcomes as a table and print them.

    Raises
    ------
    ConfigError
        The file is invalid, or a simulation failed; the others are written.
    """
    from presage.schedulers.simulator import sweep
    from presage.system.text.progress import counted_progress

    _check_workers(workers)
    scenarios = sweep.read_sweep(path)
    with counted_progress(f"{len(scenarios)} simulations", len(scenarios)) as step:
        found = sweep.run_sweep(scenarios, folder, workers=workers, ray=ray, progress=step)
    outcomes = [one for one in found if not isinstance(one, PresageError)]
    if outcomes:
        sweep.write_outcomes_table(outcomes, folder / "outcomes.parquet")
    if as_json:
        print_json({"outcomes": outcomes}, allow_nan=False)
    elif outcomes:
        print_compared(sweep.comparison_rows(outcomes))
    for name, one in zip(sweep.scenario_names(scenarios), found, strict=True):
        if isinstance(one, PresageError):
            say(f"{name}: {one}", err=True)
    if failed := len(found) - len(outcomes):
        raise ConfigError(f"{failed:,} of {len(found):,} simulations failed; see the lines above")


def _check_workers(workers: int) -> None:
    if workers < 1:
        raise ConfigError(f"--workers {workers}: must be at least 1")
