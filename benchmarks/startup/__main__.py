"""Processor time of commands and of the start of stages, written to docs/benchmarks/startup.md.

Run ``python -m benchmarks.startup [--rounds 5]``. It runs commands on a registry with two releases
and on a cluster of one node, and measures the time until a stage of dvc.yaml responds to
``--help``, with all imports of its module. The quickest round counts. The exit status is 1 if a
target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.markdown import write_page
from benchmarks.startup.commands import (
    CHANGES,
    CLUSTER,
    PREDICTION,
    REGISTRY,
    cluster,
    environment,
    fill_registry,
    presage,
    used_s,
    write_job,
)

PAGE = Path("docs/benchmarks/startup.md")
TORCH = "import torch"
FLOORS = {"python -c pass": ("-c", "pass"), TORCH: ("-c", TORCH)}
COMMAND_S = 0.5
STAGE_BAR = 1.5  # times `import torch`, whose seconds are the machine's
INTRODUCTION = """\
# Processor time of commands

This benchmark measures what a command or a stage costs before it does any work: the seconds of
processor time of the process and its children, the least of {rounds} runs. Written by
`python -m benchmarks.startup`. Load average at the end: {load:.1f}.

## Commands

Each command runs on a registry in SQLite with two releases, or on a cluster of one node with two
jobs. *Again* means that the model was traced before, and that its features are cached. The target
for commands that ask or list is {command_s:g} s.

| command | s | |
|---|---:|---|
"""
STAGES = """
## Stages

Time until a stage of `dvc.yaml` responds to `--help`. The target is {bar:g} times `import torch`.

| stage | s | times `import torch` | |
|---|---:|---:|---|
"""


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="presage-startup-") as name:
        commands_s = _commands_s(Path(name), rounds)
    lines = {name: ("-m", module, "--help") for name, module in _modules()} | FLOORS
    stages_s = _least_s(
        {name: (sys.executable, *arguments) for name, arguments in lines.items()},
        dict(os.environ),
        rounds,
    )
    write_page(PAGE, _page(commands_s, stages_s, rounds))
    bar_s = STAGE_BAR * stages_s[TORCH]
    missed = [name for name, s in commands_s.items() if s > COMMAND_S]
    missed += [name for name, s in stages_s.items() if s > bar_s]
    if missed:
        sys.exit(f"targets missed: {', '.join(missed)}")


def _commands_s(folder: Path, rounds: int) -> dict[str, float]:
    """Return the seconds of each command of ``presage``."""
    env = environment(folder)
    job = write_job(folder, env)
    fill_registry(folder, env)

    def measured(table: Mapping[str, Sequence[str]]) -> dict[str, float]:
        lines = {
            name: presage(*(str(job) if part == "JOB" else part for part in parts))
            for name, parts in table.items()
        }
        return _least_s(lines, env, rounds)

    out = measured({**PREDICTION, **REGISTRY, **CHANGES})
    with cluster(folder, env) as address:
        env["PRESAGE_CLUSTER"] = address
        return out | measured(CLUSTER)


def _least_s(
    commands: Mapping[str, Sequence[str]], env: Mapping[str, str], rounds: int
) -> dict[str, float]:
    least_s = dict.fromkeys(commands, float("inf"))
    for number in range(rounds):
        for name, command in commands.items():
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            least_s[name] = min(least_s[name], used_s(command, env))
    return least_s


def _modules() -> Iterator[tuple[str, str]]:
    """Yield each stage of dvc.yaml with its module."""
    stages: dict[str, Any] = yaml.safe_load(Path("dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        words = stage.get("do", stage)["cmd"].split()
        yield name, words[words.index("-m") + 1]


def _page(
    commands_s: Mapping[str, float], stages_s: Mapping[str, float], rounds: int
) -> Iterator[str]:
    yield INTRODUCTION.format(rounds=rounds, load=os.getloadavg()[0], command_s=COMMAND_S).rstrip(
        "\n"
    )
    for name, s in commands_s.items():
        yield f"| `presage {name}` | {s:.2f} | {'met' if s <= COMMAND_S else '**missed**'} |"
    yield STAGES.format(bar=STAGE_BAR).rstrip("\n")
    for name, s in stages_s.items():
        times = s / stages_s[TORCH]
        met = "" if name in FLOORS else "met" if times <= STAGE_BAR else "**missed**"
        yield f"| {name} | {s:.2f} | {times:.2f} | {met} |"


if __name__ == "__main__":
    main()
