"""What a person can search MLflow's runs by."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from presage.models.release import Release

_BATCH = 1000  # metrics that MLflow takes at once


def search_tags(release: Release) -> dict[str, str]:
    """Tags of a release's run and of its version."""
    return {
        "release_id": release.release_id,
        "data_digest": release.manifest["data_digest"],
        "schema_hash": release.manifest["schema_hash"],
    }


def search_params(release: Release) -> dict[str, str]:
    """Parameters of a release's run."""
    versions = {f"version.{name}": v for name, v in release.manifest["versions"].items()}
    return {
        "levels": ", ".join(f"{level:g}" for level in release.levels),
        "trained_devices": ", ".join(sorted(set().union(*release.trained_devices.values()))),
        **versions,
    }


def log_metrics(client: Any, run_id: str, metrics: Mapping[str, Any]) -> None:
    """Log every number of a nested mapping under its path, as ``memory.job.mlp.mape``."""
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    found = [Metric(name, value, now_ms, 0) for name, value in _figures(metrics)]
    for start in range(0, len(found), _BATCH):
        client.log_batch(run_id, metrics=found[start : start + _BATCH])


def _figures(metrics: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of a nested mapping, each under its path; MLflow's names know no percent sign."""
    for key, value in metrics.items():
        name = f"{path}{key}".replace("%", "pct")
        if isinstance(value, Mapping):
            yield from _figures(value, f"{name}.")
        elif isinstance(value, int | float):
            yield name, float(value)
