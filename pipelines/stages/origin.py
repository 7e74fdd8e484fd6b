"""Provenance of a registration: commit, uncommitted files, DVC's lock and parameters.

Missing facts are omitted, so a checkout without git or DVC can register a release too.
"""

from __future__ import annotations

import csv
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from presage.models.registry.mlflow_run import DVC_LOCK, Origin
from presage.models.registry.promotion_journal import current_user
from presage.pipelines.stages.stage import PARAMS
from presage.pipelines.trained_quantities import LOSS

MAX_CHANGED_FILES = 50  # in the record
_REGISTRY_KEY = (
    "registry"  # omitted: the URI may contain a password, and has no effect on the release
)
_GIT_TIMEOUT_S = 20


def read_origin(release: Path, plots: Path | None = None) -> Origin:
    """Return the provenance of a release folder in this checkout, the working folder."""
    tracked = _git("ls-files", "--", str(PARAMS))  # else the repository is not this project's
    commit = _git("rev-parse", "HEAD").strip() if tracked else ""
    changed = _git("status", "--porcelain", "--", ".", f":!{DVC_LOCK}") if commit else ""
    lock = Path(DVC_LOCK).read_text() if Path(DVC_LOCK).is_file() else ""
    return Origin(
        by=current_user(),
        git_commit=commit,
        git_changed=tuple(line[3:] for line in changed.splitlines()[:MAX_CHANGED_FILES]),
        dvc_lock=lock if dvc_digest(release) in lock else "",
        params=_params(),
        plots=plots,
        curves={} if plots is None else read_curves(plots / LOSS),
    )


def read_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the loss curves in a folder of evaluate, by names such as ``loss.memory.cpu.job``.

    Each predictor, device class and split has two: of training rows and of validation rows.
    """
    curves: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                name = f"loss.{path.stem}.{row['device_class']}.{row['split']}"
                for kind in ("training", "validation"):
                    if row[kind]:
                        point = int(row["step"]), float(row[kind])
                        curves.setdefault(f"{name}.{kind}", []).append(point)
    return curves


def dvc_digest(folder: Path) -> str:
    """Return the digest of a folder in ``dvc.lock``: the MD5 of its files' names and MD5s."""
    files = [
        {"md5": _md5(path.read_bytes()), "relpath": path.relative_to(folder).as_posix()}
        for path in folder.rglob("*")
        if path.is_file()
    ]
    listed = json.dumps(sorted(files, key=lambda file: file["relpath"]))
    return f"{_md5(listed.encode())}.dir"


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _params() -> dict[str, Any]:
    import yaml

    content = yaml.safe_load(PARAMS.read_text()) if PARAMS.is_file() else {}
    return {section: values for section, values in content.items() if section != _REGISTRY_KEY}


def _git(*arguments: str) -> str:
    """Return the output of git; "" without git or a repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], check=False, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
