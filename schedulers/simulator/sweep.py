"""Simulation sweeps: one simulation per combination of a file's values, on all cores or on Ray.

.. code-block:: yaml

    trace: [philly.csv, itp.csv]        # every list is swept over
    cluster: cluster.yaml               # paths are relative to this file
    policy: [fifo, sjf, packing]
    predictor: [none, oracle]
    seed: [0, 1, 2]

Each outcome is a file of its own, named by the digest of its inputs. A sweep that was stopped
resumes with the missing outcomes, and a scenario that fails does not stop the others.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, fields, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import NoneType
from typing import Any, get_type_hints

import presage
from presage.errors import ConfigError, PresageError
from presage.schedulers.policies.policy_registry import policy_source
from presage.schedulers.simulator.scenario import (
    NO_RELEASE,
    Scenario,
    get_served_release_id,
    make_simulation,
    stamp,
)
from presage.system.files.atomic_file import write_atomically
from presage.system.files.yaml_file import read_yaml
from presage.system.processes.ray_connection import RayConnectionError, ray_connection
from presage.system.processes.worker_processes import done_by_workers
from presage.system.text.known_names import check_known

Outcome = dict[str, Any]  # fields of a scenario, and the metrics of its schedule

_FILES = ("trace", "cluster", "measured", "quotas")
# Accepted types of a value in the file, by the type of the scenario's field.
_VALUES: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "an integer"),
    float: ((int, float), "a number (to YAML, 1e3 is text)"),
    bool: ((bool,), "true or false"),
    str: ((str,), "text; put it in quotes"),
    Path: ((str,), "the path of a file"),
    Path | None: ((str, NoneType), "the path of a folder"),
}


def read_sweep(path: Path) -> list[Scenario]:
    """Return one scenario per combination, in the order of the file, without duplicates.

    Raises
    ------
    ConfigError
        The file is missing or not YAML, a key is unknown or missing, or a value is invalid.
    """
    content = read_yaml(path, "a sweep file")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is not a mapping; write `trace:`, `cluster:` and `policy:`")
    types = get_type_hints(Scenario)
    check_known(content, types, f"{path}: ")
    for key in ("trace", "cluster"):
        if key not in content:
            raise ConfigError(f"{path}: key {key!r} is missing; name a file, or a list of files")
    try:
        lists = [_parse_values(key, types[key], raw, path.parent) for key, raw in content.items()]
        scenarios = [Scenario(**dict(zip(content, row, strict=True))) for row in product(*lists)]
    except (ConfigError, OverflowError) as error:  # an integer too large for a float
        raise ConfigError(f"{path}: {error}") from None
    has_fault_file = any(Path(scenario.faults).is_file() for scenario in scenarios)
    if any(scenario.from_day for scenario in scenarios) and not has_fault_file:
        raise ConfigError(f"{path}: from_day needs a fault file; name one as `faults`")
    # Equal scenarios have equal outcomes, which would count as several samples.
    return list(dict.fromkeys(scenarios))


def _parse_values(key: str, kind: Any, raw: Any, folder: Path) -> list[Any]:
    """Return the values of a key, converted to the type of the scenario's field."""
    types, must_be = _VALUES[kind]
    values = raw if isinstance(raw, list) else [raw]
    if not values:
        raise ConfigError(f"{key} is an empty list; give it a value, or leave it out")
    for value in values:
        has_type = isinstance(value, types) and isinstance(value, bool) == (kind is bool)
        if not has_type or "\0" in str(value):
            raise ConfigError(f"{key}={value!r} is not {must_be}")
    if kind is float:
        return [float(value) for value in values]
    return [_resolve(key, value, folder) if isinstance(value, str) else value for value in values]


def _resolve(key: str, text: str, folder: Path) -> str | Path:
    """Resolve a path relative to the folder of the sweep file."""
    if key in _FILES:
        return folder / text
    if (key == "predictor" and (folder / text).is_dir()) or (
        key in {"faults", "hazards"} and (folder / text).is_file()
    ):
        return str(folder / text)
    return text


def run_sweep(
    scenarios: Sequence[Scenario],
    folder: Path,
    *,
    workers: int,
    ray: str | None,
    progress: Callable[[], None],
) -> list[Outcome | PresageError]:
    """Return the outcome of each scenario, in order; outcomes in ``folder`` are not recomputed.

    A scenario that fails, or whose process is killed, has an error in its place.

    Parameters
    ----------
    workers : int
        Number of processes on this machine.
    ray : str or None
        Address of a Ray cluster to run on instead; "auto" for the one that this machine is part of.
        Its nodes must see the same files at the same paths.
    progress : callable
        Called after each scenario.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _served_release_id.cache_clear()
    found: dict[int, Outcome | PresageError] = {}
    missing: dict[int, Path] = {}
    for i, scenario in enumerate(scenarios):
        try:
            path = folder / f"{compute_digest(scenario)}.json"
        except (PresageError, OSError) as error:
            found[i] = PresageError(str(error))
        else:
            metrics = _read_metrics(path)
            if metrics is None:
                missing[i] = path
                continue
            found[i] = _outcome(scenario, metrics)
        progress()
    pending = [scenarios[i] for i in missing]
    runs = _run_on_ray(pending, ray) if ray else _run_in_processes(pending, workers)
    with closing(runs):
        for position, outcome in runs:
            i = list(missing)[position]
            found[i] = outcome
            if not isinstance(outcome, PresageError):
                _write(missing[i], outcome)
            progress()
    return [found[i] for i in range(len(scenarios))]


def _read_metrics(path: Path) -> dict[str, Any] | None:
    """Return the metrics of an outcome file; None if it is missing, corrupt or incomplete."""
    from presage.schedulers.simulator.results.schedule_metrics import Metrics

    try:
        metrics = json.loads(path.read_bytes())["metrics"]
        is_complete = metrics.keys() == {field.name for field in fields(Metrics)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return metrics if is_complete else None


def compute_digest(scenario: Scenario) -> str:
    """Return a digest of a scenario's values, its files, the served release and the code.

    Raises
    ------
    PresageError
        The cluster file is invalid, or the service does not respond.
    """
    inputs = {**_to_json(scenario), "code": _code_digests()}
    for name in ("trace", "measured", "predictor", "faults", "hazards", "quotas"):
        path = getattr(scenario, name)
        if path and Path(path).exists():
            inputs[name] = _content_digest(Path(path))
    if source := policy_source(scenario.policy):
        inputs["policy_code"] = _content_digest(source)
    inputs["cluster"] = _cluster_digest(scenario.cluster, stamp(scenario.cluster))
    if scenario.predictor not in NO_RELEASE and not Path(scenario.predictor).exists():
        inputs["release"] = _served_release_id(scenario.predictor)
        if isinstance(inputs["release"], PresageError):
            raise inputs["release"]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _code_digests() -> list[str]:
    """Return digests of the packages that the outcome of a scenario depends on."""
    package = Path(presage.__file__).parent
    return [_content_digest((package / name).resolve()) for name in ("schedulers", "features")]


@lru_cache(maxsize=64)
def _cluster_digest(path: Path, _stamp: object) -> str:
    """Return a digest of the parsed cluster, including the listings that its file names."""
    from presage.schedulers.cluster_files.cluster_file import read_cluster

    return hashlib.sha256(repr(read_cluster(path)).encode()).hexdigest()


@lru_cache(maxsize=64)
def _served_release_id(predictor: str) -> str | PresageError:
    """Return the release of a service, or its error; cached for a sweep."""
    try:
        return get_served_release_id(predictor)
    except PresageError as error:
        return error


def _content_digest(path: Path) -> str:
    return _cached_digest(path, stamp(path))


@lru_cache(maxsize=64)
def _cached_digest(path: Path, _stamp: object) -> str:
    digest = hashlib.sha256()
    contents = (file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")
    files = [path] if path.is_file() else sorted(contents)
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _to_json(scenario: Scenario) -> dict[str, Any]:
    """Return the fields of a scenario for JSON: paths and infinities as text."""
    values = asdict(scenario)
    return {
        key: value if isinstance(value, int | float) and value != float("inf") else str(value)
        for key, value in values.items()
    }


def _outcome(scenario: Scenario, metrics: dict[str, Any]) -> Outcome:
    return {"scenario": _to_json(scenario), "metrics": metrics}


def simulate_scenario(scenario: Scenario) -> Outcome | PresageError:
    """Simulate a scenario and return its outcome or error; the task of a worker process."""
    from presage.schedulers.simulator.results.schedule_metrics import compute_metrics

    try:
        simulation = make_simulation(scenario)
        simulation.run()
    except (PresageError, OSError) as error:
        return PresageError(str(error))  # any process can unpickle it
    return _outcome(scenario, asdict(compute_metrics(simulation)))


def _run_in_processes(
    scenarios: Sequence[Scenario], workers: int
) -> Generator[tuple[int, Outcome | PresageError]]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return done_by_workers(simulate_scenario, scenarios, workers)


def _run_on_ray(
    scenarios: Sequence[Scenario], address: str
) -> Generator[tuple[int, Outcome | PresageError]]:
    try:
        with ray_connection(address) as ray:
            simulate = ray.remote(simulate_scenario)
            tasks = {simulate.remote(_absolute(one)): i for i, one in enumerate(scenarios)}
            unfinished = list(tasks)
            while unfinished:
                (task,), unfinished = ray.wait(unfinished)
                try:
                    outcome = ray.get(task)
                except ray.exceptions.RayError as error:  # such as a killed worker
                    outcome = PresageError(" ".join(str(error).split()))
                yield tasks[task], outcome
    except RayConnectionError as error:
        raise ConfigError(
            f"--ray {address}: {error}; start a cluster with `ray start --head`"
        ) from None


def scenario_names(scenarios: Sequence[Scenario]) -> list[str]:
    """Name each scenario by its varied values, such as "policy=sjf seed=1", or by its trace."""
    rows = [_to_json(scenario) for scenario in scenarios]
    varied = _varied_keys(rows) or ["trace"]
    return [" ".join(f"{key}={_format(key, row[key])}" for key in varied) for row in rows]


def _varied_keys(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [key for key in rows[0] if len({str(row[key]) for row in rows}) > 1]


def _format(key: str, value: Any) -> str:
    return Path(value).name if key in _FILES else str(value)


# Metrics in the comparison of a sweep: title, and divisor for the unit shown.
_SHOWN = {
    "average_jct_s": ("JCT h", 3600.0),
    "p99_jct_s": ("JCT 99 % h", 3600.0),
    "average_queue_s": ("waiting h", 3600.0),
    "average_slowdown": ("slowdown", 1.0),
    "overflows": ("overflows", 1.0),
}


def comparison_rows(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """Return one row per group of outcomes that differ only in their seed.

    Columns are the varied keys, the number of finished jobs, and the means of their metrics with
    the margins of 95 % confidence intervals.
    """
    from presage.schedulers.simulator.results.confidence import mean_with_margin

    scenarios = [outcome["scenario"] for outcome in outcomes]
    varied = [key for key in _varied_keys(scenarios) if key != "seed"]
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        group = tuple(str(outcome["scenario"][key]) for key in varied)
        groups.setdefault(group, []).append(outcome["metrics"])
    rows = []
    for values, metrics in groups.items():
        row = {key: _format(key, value) for key, value in zip(varied, values, strict=True)}
        row["finished"] = _finished(metrics)
        for metric, (title, unit) in _SHOWN.items():
            known = [one[metric] for one in metrics if one[metric] is not None]
            row[title] = "-"
            if known:
                mean, margin = mean_with_margin([value / unit for value in known])
                suffix = f" ± {margin:,.2f}" if 0 < margin < math.inf else ""
                row[title] = f"{mean:,.2f}{suffix}"
        rows.append(row)
    return rows


def _finished(metrics: Sequence[dict[str, Any]]) -> str:
    """Format the mean number of finished jobs, with the number of all jobs if some did not."""
    mean = sum(one["jobs"] for one in metrics) / len(metrics)
    jobs = sum(metrics[0][key] for key in ("jobs", "failed", "rejected", "starved"))
    return f"{jobs:,}" if mean == jobs else f"{mean:,.2f} of {jobs:,}"


def write_outcomes_table(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write a Parquet table with one row per outcome: fields of the scenario, then metrics."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [one["scenario"] | one["metrics"] for one in outcomes]
    write_atomically(path, lambda new: pq.write_table(pa.Table.from_pylist(rows), new))


def _absolute(scenario: Scenario) -> Scenario:
    """Return the scenario with absolute paths, which are valid in every process and node."""
    return replace(
        scenario,
        trace=scenario.trace.resolve(),
        cluster=scenario.cluster.resolve(),
        measured=None if scenario.measured is None else scenario.measured.resolve(),
        predictor=_absolute_text(scenario.predictor),
        faults=_absolute_text(scenario.faults),
        hazards=_absolute_text(scenario.hazards),
        quotas=None if scenario.quotas is None else scenario.quotas.resolve(),
    )


def _absolute_text(text: str) -> str:
    """Return an existing path as absolute; other text is a name, an address or numbers."""
    return str(Path(text).resolve()) if text and Path(text).exists() else text


def _write(path: Path, outcome: Outcome) -> None:
    text = json.dumps(outcome, allow_nan=False)
    write_atomically(path, lambda new: new.write_text(text))
