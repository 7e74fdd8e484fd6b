"""Stages of dvc.yaml, run one after another in a folder, with their cost."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# Stages from outcomes to the gate, in the order of `dvc repro`.
STAGES = (
    "ingest", "featurize", "train", "train_interference", "baselines", "evaluate", "release",
    "promote",
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Cost of one stage: processor and wall seconds, and the most memory at once."""

    stage: str
    cpu_s: float
    wall_s: float
    peak_bytes: int
    load: float  # of the machine, when the stage ended


def make_workspace(folder: Path, local: Path) -> None:
    """Make a folder with the files that stages read, ``local`` as the campaign of the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy("params.yaml", folder)
    profiles = folder / "data/profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    for name in ("cpu-2", "cpu-2-zoo"):
        _link(profiles / name, Path("data/profiles") / name)
    _link(profiles / "local", local)
    _link(folder / "data/pretrained", Path("data/pretrained"))


def _link(at: Path, to: Path) -> None:
    if not at.is_symlink():
        at.symlink_to(to.absolute())


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the command of each stage of ``STAGES``, as `dvc repro` runs it."""
    stages: dict[str, dict[str, Any]] = yaml.safe_load(Path("dvc.yaml").read_text())["stages"]
    for name in STAGES:
        items = stages[name].get("foreach", [""])
        text = stages[name].get("do", stages[name])["cmd"]
        for item in items:
            words = shlex.split(text.replace("${item}", item))
            yield (f"{name} {item}".strip(), [sys.executable, *words[1:]])


def run_stage(stage: str, command: list[str], folder: Path) -> Cost:
    """Run a stage in a workspace; its output goes to a file there.

    Raises
    ------
    subprocess.CalledProcessError
        The stage fails.
    """
    log = folder / f"{stage.replace(' ', '-')}.log"
    start_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, log.read_bytes())
    return _cost(stage, usage, time.monotonic() - start_s)


def _cost(stage: str, usage: resource.struct_rusage, wall_s: float) -> Cost:
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(stage, cpu_s, wall_s, usage.ru_maxrss * 1024, os.getloadavg()[0])
