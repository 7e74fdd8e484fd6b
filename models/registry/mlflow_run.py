"""Contents of MLflow's runs and model versions: tags, parameters, metrics and artifacts."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from presage.models.registry.release_kind import RegistrableRelease
from presage.models.registry.uri import FOLDER, RELEASE_ID
from presage.models.release.training_data import read_training_data

DVC_LOCK = "dvc.lock"  # artifact of a version's run

_BATCH = 1000  # MLflow's limit of metrics per call
_PARAMS_BATCH, _PARAM_CHARACTERS = 100, 6000  # and of parameters
_TAG_CHARACTERS = 5000  # MLflow's limit; longer lists of names are truncated
_INVALID_IN_NAME = re.compile(r"[^\w\-. :/]")  # characters that MLflow rejects in names
_SEARCHED = ("outcome", "champion", "reason")  # of a decision


@dataclass(frozen=True)
class Origin:
    """Provenance of a registration, which is not part of the release.

    Equal tables and parameters give equal releases, whatever the commit.

    Attributes
    ----------
    by : str
        User and machine.
    git_commit : str
        Commit of the checkout; "" if there is none.
    git_changed : tuple of str
        Files that differ from the commit, without ``dvc.lock``, which `dvc repro` writes.
    dvc_lock : str
        Content of ``dvc.lock`` if it names this release; else "".
    params : mapping of str to anything
        Sections of ``params.yaml``.
    plots : Path or None
        Folder of the evaluation's plots.
    curves : mapping of str to sequence of (int, float)
        Values of metrics by step, such as the loss while networks trained.
    """

    by: str = ""
    git_commit: str = ""
    git_changed: tuple[str, ...] = ()
    dvc_lock: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    plots: Path | None = None
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    @property
    def dvc_lock_sha256(self) -> str:
        """Digest of ``dvc.lock``; "" if there is none."""
        return hashlib.sha256(self.dvc_lock.encode()).hexdigest() if self.dvc_lock else ""


def log_release(
    client: Any,
    experiment: str,
    release: RegistrableRelease,
    metrics: Mapping[str, Any],
    origin: Origin,
    stored: Callable[[Any], AbstractContextManager[Path]],
) -> Any:
    """Create the MLflow run of a release, with its files, tags, parameters and metrics.

    ``stored`` yields the folder with the files to store.
    """
    run = client.create_run(
        experiment,
        run_name=f"release {release.release_id}",
        tags=search_tags(release, origin) | mlflow_tags(release, origin),
    )
    run_id = run.info.run_id
    log_params(client, run_id, search_params(release, origin))
    log_metrics(client, run_id, metrics)
    log_curves(client, run_id, origin.curves)
    with stored(release) as folder:
        client.log_artifacts(run_id, str(folder), FOLDER)
    if origin.dvc_lock:
        client.log_text(run_id, origin.dvc_lock, DVC_LOCK)
    if origin.plots is not None:
        client.log_artifacts(run_id, str(origin.plots), "plots")
    client.set_terminated(run_id)
    return run


def log_decision(
    client: Any,
    run_id: str,
    decision: Mapping[str, Any],
    metrics: Mapping[str, Any],
    table: Sequence[Mapping[str, Any]],
) -> None:
    """Log a decision of the gate in a release's run: its figures and the whole table."""
    log_metrics(client, run_id, metrics)
    text = json.dumps(decision, indent=2, sort_keys=True) + "\n"
    client.log_text(run_id, text, "decision.json")
    client.log_text(run_id, json.dumps(list(table), indent=1), "table.json")
    client.log_text(run_id, _csv(table), "table.csv")  # shown as a table by MLflow
    for name in _SEARCHED:
        client.set_tag(run_id, name, str(decision.get(name) or ""))


def search_tags(release: RegistrableRelease, origin: Origin) -> dict[str, str]:
    """Return the tags of a release's run and version; unknown values have no tag."""
    tags = {
        RELEASE_ID: release.release_id,
        "data_digest": release.manifest["data_digest"],
        "schema_hash": release.manifest["schema_hash"],
        "campaigns": ", ".join(training_campaigns(release)),
        "registered_by": origin.by,
        "git_commit": origin.git_commit,
        "git_changed": ", ".join(origin.git_changed),
        "dvc_lock_sha256": origin.dvc_lock_sha256,
    }
    return {name: _truncate(value) for name, value in tags.items() if value}


def mlflow_tags(release: RegistrableRelease, origin: Origin) -> dict[str, str]:
    """Return the tags that MLflow's pages show: source, user, commit, description."""
    tags = {
        "mlflow.source.name": "dvc repro",
        "mlflow.source.type": "PROJECT",
        "mlflow.source.git.commit": origin.git_commit,
        "mlflow.user": origin.by,
        "mlflow.note.content": describe_release(release, origin),
    }
    return {name: value for name, value in tags.items() if value}


def describe_release(release: RegistrableRelease, origin: Origin) -> str:
    """Return the description of a run and a version, in Markdown."""
    names = ", ".join(training_campaigns(release)) or "not known"
    commit = origin.git_commit or "not known"
    changed = f", changed since: {', '.join(origin.git_changed)}" if origin.git_changed else ""
    return (
        f"Release `{release.release_id}`\n\n- campaigns: {_truncate(names)}\n"
        f"- git commit: `{commit}`{_truncate(changed)}\n"
        f"- lineage: `presage models show {release.release_id} --lineage`\n"
    )


def training_campaigns(release: RegistrableRelease) -> list[str]:
    """Return the names of the campaigns in the training of a release and its base releases."""
    data = read_training_data(release.manifest, f"release {release.release_id}")
    return (
        []
        if data is None
        else sorted({rows.campaign for rows, _ in data.all_rows() if rows.trained})
    )


def search_params(release: RegistrableRelease, origin: Origin) -> dict[str, str]:
    """Return the parameters of a release's run: those of ``params.yaml``, and versions."""
    versions = {f"version.{name}": v for name, v in release.manifest["versions"].items()}
    return {
        **release.search_params,
        **versions,
        **dict(_flatten(origin.params)),
    }


def log_params(client: Any, run_id: str, params: Mapping[str, str]) -> None:
    """Log parameters, in batches that MLflow accepts."""
    from mlflow.entities import Param

    found = [
        Param(_INVALID_IN_NAME.sub("_", name), value[:_PARAM_CHARACTERS])
        for name, value in params.items()
    ]
    for start in range(0, len(found), _PARAMS_BATCH):
        client.log_batch(run_id, params=found[start : start + _PARAMS_BATCH])


def log_metrics(client: Any, run_id: str, metrics: Mapping[str, Any]) -> None:
    """Log every number of a nested mapping under its path, as ``memory.job.mlp.mape``."""
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    _log_batches(
        client, run_id, [Metric(name, value, now_ms, 0) for name, value in _figures(metrics)]
    )


def log_curves(client: Any, run_id: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Log metrics by step, which MLflow draws as lines."""
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    points = [
        Metric(name, value, now_ms, step) for name, curve in curves.items() for step, value in curve
    ]
    _log_batches(client, run_id, points)


def _log_batches(client: Any, run_id: str, found: Sequence[Any]) -> None:
    for start in range(0, len(found), _BATCH):
        client.log_batch(run_id, metrics=found[start : start + _BATCH])


def _figures(metrics: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a nested mapping by path; MLflow rejects percent signs in names."""
    for key, value in metrics.items():
        name = f"{path}{key}".replace("%", "pct")
        if isinstance(value, Mapping):
            yield from _figures(value, f"{name}.")
        elif isinstance(value, int | float):
            yield name, float(value)


def _flatten(params: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every value by path, as ``train.memory.hidden``."""
    for key, value in params.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}{key}.")
        else:
            yield (
                f"{path}{key}",
                value if isinstance(value, str) else json.dumps(value, default=str),
            )


def _csv(table: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(table[0]) if table else [])
    writer.writeheader()
    writer.writerows(table)
    return out.getvalue()


def _truncate(text: str) -> str:
    return text if len(text) <= _TAG_CHARACTERS else f"{text[: _TAG_CHARACTERS - 1]}…"
