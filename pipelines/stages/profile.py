"""DVC stage: this machine -> measured tables of jobs alone and co-located.

``python -m presage.pipelines.stages.profile OUT_DIR``; the same as the command ``presage profile``.
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

if TYPE_CHECKING:
    from presage.pipelines.profiling.campaign.campaign_progress import Progress, Report
    from presage.pipelines.profiling.running.runner import OpenRunner

BUDGET_S = 150.0  # unless params.yaml, a campaign file or a flag says otherwise


def run_profile(
    folder: Path, settings: Mapping[str, Any], *, ray_address: str | None = None
) -> Progress:
    """Measure this machine, or a Ray cluster, into the tables of ``folder``; progress on stderr.

    ``settings`` are those of ``CampaignSettings`` in ``profiling/campaign_settings.py``. Ctrl-C
    leaves every table whole and no process behind; a later call goes on from there.

    Raises
    ------
    ProfilingError
        What was asked for cannot be measured here.
    """
    from presage.pipelines.profiling.campaign.campaign import run_campaign
    from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
    from presage.pipelines.profiling.running.runner import local_runner

    defaults: dict[str, Any] = {"campaign": "local", "budget_s": BUDGET_S}
    wanted = CampaignSettings(**(defaults | dict(settings)))
    open_runner: OpenRunner = local_runner
    if ray_address is not None:
        from presage.pipelines.profiling.running.ray_runner import ray_runner

        open_runner = ray_runner(ray_address)
    with _reporter() as report:
        return run_campaign(folder, wanted, report, open_runner=open_runner)


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    args = _parser().parse_args(argv)
    given = {key: value for key, value in vars(args).items() if value is not None}
    folder, params = given.pop("folder"), given.pop("params")
    campaign_file, ray_address = given.pop("campaign_file", None), given.pop("ray", None)
    if given.pop("retrace"):
        from presage.pipelines.profiling.retrace import retrace

        sys.stderr.write(f"traced {retrace(folder)} jobs again: {folder}\n")
        return
    settings = _read_file(campaign_file) if campaign_file else _read_params(params)
    end = run_profile(folder, settings | given, ray_address=ray_address)
    sys.stderr.write(
        f"measured {end.solo} jobs solo and {end.colocated} co-locations "
        f"({end.failed} failed) in {end.elapsed_s:.0f} s: {folder}\n"
    )


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
        help="measure nothing; rewrite the graphs of the jobs that are there",
    )
    over = parser.add_argument_group("instead of the file's")
    over.add_argument("--campaign", help="name recorded in every row")
    over.add_argument("--budget-s", type=float)
    over.add_argument("--jobs", type=int)
    over.add_argument("--colocations", type=int)
    over.add_argument("--window-s", type=float)
    over.add_argument("--seed", type=int)
    over.add_argument("--solo-share", type=float)
    over.add_argument("--threads", type=int)
    over.add_argument("--families", type=lambda text: tuple(text.split(",")))
    return parser


def _read_file(path: Path) -> dict[str, Any]:
    from presage.pipelines.profiling.campaign.campaign_file import read_campaign_file

    return read_campaign_file(path)


def _read_params(path: Path) -> dict[str, Any]:
    """Section ``profile``; empty without the file, since every key can be a flag."""
    if not path.exists():
        return {}
    from presage.pipelines.profiling.campaign.campaign_file import parse_settings

    return parse_settings(read_section("profile", path), where=f"{path}: profile")


@contextlib.contextmanager
def _reporter() -> Iterator[Report]:
    """A bar on a terminal, log lines elsewhere."""
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
    # No refresh thread: it would be a load beside the jobs.
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
