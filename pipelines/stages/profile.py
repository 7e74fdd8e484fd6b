"""DVC stage that measures jobs on this machine, solo and co-located.

``python -m presage.pipelines.stages.profile OUT_DIR`` is the same as ``presage profile``.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.pipelines.stages.stage import PARAMS, read_section, run_stage
from presage.system.text.printable import printable
from presage.system.text.units import counted

if TYPE_CHECKING:
    from presage.pipelines.profiling.campaign.campaign_progress import Progress, Report
    from presage.pipelines.profiling.running.runner import OpenRunner

BUDGET_S = 150.0  # default; params.yaml, a campaign file or a flag overrides it
ANCHOR_BUDGET_S = 300.0  # at most; the anchors of a precision take about two minutes
BUSY = 0.1  # share of the device; it changes step times noticeably
FEW_JOBS = 10  # too few to learn from


def run_profile(
    folder: Path, settings: Mapping[str, Any], *, ray_address: str | None = None
) -> Progress:
    """Measure jobs on this machine, or on a Ray cluster, into the tables of ``folder``.

    Progress is written to stderr. Ctrl-C leaves complete tables and no process; a later call
    continues from there.

    Parameters
    ----------
    folder : Path
        Folder of the tables.
    settings : mapping
        Fields of ``CampaignSettings`` (``profiling/campaign/campaign_settings.py``).
    ray_address : str, optional
        Address of a Ray cluster.

    Raises
    ------
    ProfilingError
        The settings cannot be measured here.
    """
    from presage.pipelines.profiling.campaign.campaign import run_campaign
    from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
    from presage.pipelines.profiling.running.runner import local_runner

    defaults: dict[str, Any] = {"campaign": "local", "budget_s": BUDGET_S}
    campaign_settings = CampaignSettings(**(defaults | dict(settings)))
    open_runner: OpenRunner = local_runner
    if ray_address is not None:
        from presage.pipelines.profiling.running.ray_runner import ray_runner

        open_runner = ray_runner(ray_address)
    with _reporter() as report:
        return run_campaign(folder, campaign_settings, report, open_runner=open_runner)


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    args = _parser().parse_args(argv)
    options = {key: value for key, value in vars(args).items() if value is not None}
    folder, params = options.pop("folder"), options.pop("params")
    campaign_file, ray_address = options.pop("campaign_file", None), options.pop("ray", None)
    if options.pop("retrace"):
        from presage.pipelines.profiling.retrace import retrace

        sys.stderr.write(f"traced {retrace(folder)} jobs again: {folder}\n")
        return
    settings = _read_file(campaign_file) if campaign_file else _read_params(params)
    if options.get("anchor"):
        settings = {"campaign": "anchor", "budget_s": ANCHOR_BUDGET_S}
    earlier = _measured_jobs(folder)
    end = run_profile(folder, settings | options, ray_address=ray_address)
    sys.stderr.write(
        f"measured {end.solo} jobs solo and {end.colocated} co-locations "
        f"({end.failed} failed) in {end.elapsed_s:.0f} s: {folder}\n"
    )
    if end.foreign_load > BUSY:
        sys.stderr.write(
            f"warning: other programs used {end.foreign_load:.0%} of the device, so measured times "
            "are those of a busy machine; measure into a new folder when it is quiet\n"
        )
    chosen = settings | options
    known = earlier + end.solo
    if known < FEW_JOBS and not (chosen.get("jobs") or chosen.get("anchor")):
        sys.stderr.write(
            f"warning: the budget was enough for {counted(known, 'job')}, and forecasts learned "
            "from so few are poor; repeat with a larger --budget to measure more into this folder\n"
        )


def _measured_jobs(folder: Path) -> int:
    """Return the number of solo runs in a campaign folder, 0 if it has none."""
    path = folder / "executions.parquet"
    if not path.is_file():
        return 0
    from presage.features.tables import schemas as tables

    return int(tables.read(tables.EXECUTIONS, path).num_rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="OUT_DIR")
    parser.add_argument("--params", type=Path, default=PARAMS)
    parser.add_argument(
        "--campaign-file", type=Path, help="YAML of settings, instead of params.yaml"
    )
    parser.add_argument("--ray", metavar="ADDRESS", help="measure on the nodes of a Ray cluster")
    parser.add_argument(
        "--retrace",
        action="store_true",
        help="measure nothing; rewrite the graphs of the measured jobs",
    )
    over = parser.add_argument_group("overrides of the file")
    over.add_argument("--campaign", help="name recorded in every row")
    over.add_argument("--budget-s", type=float)
    over.add_argument("--jobs", type=int)
    over.add_argument("--colocations", type=int)
    over.add_argument("--window-s", type=float)
    over.add_argument("--seed", type=int)
    over.add_argument("--solo-share", type=float)
    over.add_argument("--threads", type=int)
    over.add_argument("--anchor", action="store_true", default=None)
    over.add_argument("--families", type=lambda text: tuple(text.split(",")))
    return parser


def _read_file(path: Path) -> dict[str, Any]:
    from presage.pipelines.profiling.campaign.campaign_file import read_campaign_file

    return read_campaign_file(path)


def _read_params(path: Path) -> dict[str, Any]:
    """Return the section ``profile``; empty without the file, since every key has a flag."""
    if not path.exists():
        return {}
    from presage.pipelines.profiling.campaign.campaign_file import parse_settings

    return parse_settings(read_section("profile", path), where=f"{path}: profile")


@contextlib.contextmanager
def _reporter() -> Iterator[Report]:
    """Yield a progress callback: a bar on a terminal, log lines elsewhere."""
    if not sys.stderr.isatty():
        logging.basicConfig(format="%(asctime)s %(message)s")
        logging.getLogger("presage").setLevel(logging.INFO)
        yield lambda progress: None
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    from presage.system.text.terminal import Console

    columns = (
        TextColumn("{task.fields[phase]:9}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[counts]}  {task.fields[left]}  {task.description}", markup=False),
    )
    # Without a refresh thread, which would disturb the measured jobs.
    with Bar(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("", total=1.0, phase="", counts="", left="")

        def show(progress: Progress) -> None:
            whole_s = progress.elapsed_s + progress.left_s
            bar.update(
                task,
                completed=progress.elapsed_s / whole_s if whole_s else 1.0,
                description=printable(progress.current),
                phase=progress.phase,
                counts=f"{progress.solo} solo, {progress.colocated} co-located",
                left=f"{timedelta(seconds=round(progress.left_s))} left",
                refresh=True,
            )

        yield show


if __name__ == "__main__":
    run_stage(main)
