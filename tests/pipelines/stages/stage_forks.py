"""Run stages in children that are forked after all imports, and kill them at given points.

``python -m tests.pipelines.stages.stage_forks`` reads a line of JSON for each run and answers with
one. Imports take seconds, but only once, and every kill happens in the work of a stage.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

STAGES = ("ingest", "featurize", "train", "train_interference", "evaluate", "release", "promote")


def _module(stage: str) -> str:
    """Return the name of a stage's module, given the stage with its arguments."""
    name = stage.split(maxsplit=1)[0]
    return "build_release" if name == "release" else name


# Before each of these the file system is as it may be found after a kill.
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "sqlite3.connect")


def run(
    stage: str, arguments: list[str], folder: str, at: int | None, after_s: float | None
) -> Any:
    """Status of the child as ``os.waitpid`` has it, and changes that it made or was about to make.

    It is killed, with its whole process group, before change number ``at``, or after seconds.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_stage(stage, arguments, Path(folder), at, writer)
    os.close(writer)
    killer = threading.Timer(after_s or 0, os.killpg, (child, signal.SIGKILL))
    if after_s is not None:
        os.setpgid(child, child)
        killer.start()
    _, status = os.waitpid(child, 0)
    killer.cancel()
    with os.fdopen(reader) as told:
        changes = told.read().count(".")
    return {"signal": os.WTERMSIG(status), "code": os.WEXITSTATUS(status), "changes": changes}


def _be_stage(stage: str, arguments: list[str], folder: Path, at: int | None, writer: int) -> None:
    os.setpgid(0, 0)
    os.chdir(folder)
    sys.addaudithook(_hook(folder, at, writer))
    os.dup2(os.open(folder / "stage.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    try:
        module = importlib.import_module(f"presage.pipelines.stages.{_module(stage)}")
        importlib.import_module("presage.pipelines.stages.stage").run_stage(
            lambda: module.main(arguments)
        )
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    os._exit(code)


def _hook(folder: Path, at: int | None, writer: int) -> Callable[[str, tuple[Any, ...]], None]:
    seen = 0

    def changing(event: str, told: tuple[Any, ...]) -> bool:
        if event == "open":
            if not isinstance(told[2], int) or not told[2] & (os.O_WRONLY | os.O_RDWR):
                return False
        elif event not in CHANGES:
            return False
        path = Path(told[0]).absolute() if isinstance(told[0], str | Path) else None
        return path is not None and folder in path.parents and path.name != "stage.log"

    def hook(event: str, told: tuple[Any, ...]) -> None:
        nonlocal seen
        if not changing(event, told):
            return
        if seen == at:
            os.killpg(0, signal.SIGKILL)
        seen += 1
        os.write(writer, b".")

    return hook


def main() -> None:
    """Answer until the input ends."""
    import torch
    from torch import nn

    from presage.models.onnx_export.export import export
    from presage.models.training import baselines

    baselines.BASELINES = {
        n: b for n, b in baselines.BASELINES.items() if n != "boosted_trees"
    }  # a minute, and no network of ours
    for name in (
        *(f"presage.pipelines.stages.{_module(stage)}" for stage in STAGES),
        "presage.models.registry.registry",
    ):
        importlib.import_module(name)
    for name in ("mlflow", "sklearn.linear_model", "presage.models.gate.holdout_score"):
        importlib.import_module(name)
    export(nn.Linear(2, 2), {"rows": (torch.zeros(2, 2), ("rows",))})  # imports more than is seen
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
