"""Sweeps: a simulation for every combination of what a file names, on all cores or on Ray.

.. code-block:: yaml

    trace: [philly.csv, itp.csv]        # whatever is a list is swept over
    cluster: cluster.yaml               # files are looked for beside this one
    policy: [fifo, sjf, packing]
    forecast: [none, oracle]
    seed: [0, 1, 2]

Each outcome is a file of its own, named by what it was made of: a sweep that was stopped goes on
with those that are missing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, fields, replace
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from presage.features.errors import ConfigError, PresageError
from presage.pipelines.stage import write_atomically
from presage.scenario import Scenario, simulation_of, stamp
from presage.schedulers.keys import check_known

Outcome = dict[str, Any]  # of a scenario: its fields, and what its schedule was worth

_FILES = ("trace", "cluster", "measured")
_TYPES = {
    "load": float, "risk": float, "noise": float, "bias": float, "from_day": float,
    "checkpoint_interval_s": float, "checkpoint_cost_s": float, "restart_s": float,
}  # fmt: skip


def read_sweep(path: Path) -> list[Scenario]:
    """A scenario for every combination, in the order of the file.

    Raises
    ------
    ConfigError
        The file is missing or no YAML; a key is unknown or missing, or a value of no use.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a sweep") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is no mapping; write `trace:`, `cluster:` and `policy:`")
    check_known(content, [field.name for field in fields(Scenario)], f"{path}: ")
    for key in ("trace", "cluster"):
        if key not in content:
            raise ConfigError(f"{path}: no {key}; name a file, or a list of them")
    lists = [value if isinstance(value, list) else [value] for value in content.values()]
    try:
        return [
            Scenario(**{k: _value(k, v, path.parent) for k, v in zip(content, values, strict=True)})
            for values in product(*lists)
        ]
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _value(key: str, value: Any, beside: Path) -> Any:
    if key in _FILES:
        return beside / str(value)
    if key == "forecast" and (beside / str(value)).is_dir():
        return str(beside / str(value))
    if key == "faults" and (beside / str(value)).is_file():
        return str(beside / str(value))
    wanted = _TYPES.get(key)
    if wanted is None:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key}={value!r} is no number")
    return wanted(value)


def run_sweep(
    scenarios: Sequence[Scenario],
    folder: Path,
    *,
    workers: int,
    ray: str | None,
    progress: Callable[[], None],
) -> list[Outcome]:
    """The outcome of each scenario, in order; those that ``folder`` has are not made again.

    Parameters
    ----------
    workers : int
        Processes of this machine.
    ray : str or None
        Address of a Ray cluster to run on instead, "auto" for the one that this machine is in. Its
        nodes see the same files, at the same paths.
    progress : callable
        Called after each scenario.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{digest_of(scenario)}.json" for scenario in scenarios]
    missing = {
        path: scenario
        for path, scenario in zip(paths, scenarios, strict=True)
        if not path.is_file()
    }
    for _ in range(len(scenarios) - len(missing)):
        progress()
    made = _on_ray(missing, ray) if ray else _on_processes(missing, workers)
    for path, outcome in made:
        _write(path, outcome)
        progress()
    return [json.loads(path.read_text()) for path in paths]


def digest_of(scenario: Scenario) -> str:
    """Of a scenario's values, the content of its files, and the simulator."""
    import presage.schedulers

    told = {**_plain(scenario), "simulator": _content(Path(presage.schedulers.__path__[0]))}
    for name in (*_FILES, "forecast", "faults"):
        path = getattr(scenario, name)
        if path and Path(path).exists():
            told[name] = _content(Path(path))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _content(path: Path) -> str:
    return _content_now(path, stamp(path))


@lru_cache(maxsize=64)
def _content_now(path: Path, _stamp: object) -> str:
    digest = hashlib.sha256()
    inside = (one for one in path.rglob("*") if one.is_file() and one.suffix != ".pyc")
    files = [path] if path.is_file() else sorted(inside)
    for file in files:
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _plain(scenario: Scenario) -> dict[str, Any]:
    """Its fields, as JSON has them: paths and infinities as text."""
    values = asdict(scenario)
    return {
        key: value if isinstance(value, int | float) and value != float("inf") else str(value)
        for key, value in values.items()
    }


def outcome_of(scenario: Scenario) -> Outcome:
    """Simulate; what a process of its own is asked to do."""
    from presage.schedulers.metrics import metrics_of

    try:
        done = simulation_of(scenario)
        done.run()
    except PresageError as error:
        raise ConfigError(f"{scenario.trace.name} under {scenario.policy}: {error}") from None
    return {"scenario": _plain(scenario), "metrics": asdict(metrics_of(done))}


def _on_processes(missing: Mapping[Path, Scenario], workers: int) -> Iterator[tuple[Path, Outcome]]:
    if not missing:
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(min(workers, len(missing)), get_context("spawn")) as pool:
        path_of = {pool.submit(outcome_of, one): path for path, one in missing.items()}
        try:
            for done in as_completed(path_of):
                yield path_of[done], done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _on_ray(missing: Mapping[Path, Scenario], address: str) -> Iterator[tuple[Path, Outcome]]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    mine = not ray.is_initialized()
    if mine:
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            line = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"--ray {address}: {line}; start one with `ray start --head`"
            ) from None
    try:
        simulate = ray.remote(outcome_of)
        path_of = {simulate.remote(_absolute(scenario)): path for path, scenario in missing.items()}
        left = list(path_of)
        while left:
            (done,), left = ray.wait(left)
            yield path_of[done], ray.get(done)
    finally:
        if mine:
            ray.shutdown()


# What a sweep is compared by, and in which unit.
_SHOWN = {
    "average_jct_s": ("JCT h", 3600.0),
    "p99_jct_s": ("JCT 99 % h", 3600.0),
    "average_queue_s": ("waiting h", 3600.0),
    "average_slowdown": ("slowdown", 1.0),
    "overflows": ("overflows", 1.0),
}


def compared(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """A row for all outcomes that differ in their seed alone: means, and what they may be off by.

    Columns are what differs between scenarios, then metrics.
    """
    from presage.schedulers.confidence import mean_and_margin

    varied = [
        key
        for key in outcomes[0]["scenario"]
        if key != "seed" and len({str(one["scenario"][key]) for one in outcomes}) > 1
    ]
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(tuple(str(one["scenario"][key]) for key in varied), []).append(one)
    rows = []
    for values, alike in groups.items():
        row = {
            key: Path(value).name if key in _FILES else value
            for key, value in zip(varied, values, strict=True)
        }
        for metric, (title, unit) in _SHOWN.items():
            known = [one["metrics"][metric] for one in alike if one["metrics"][metric] is not None]
            row[title] = "-"
            if known:
                mean, margin = mean_and_margin([value / unit for value in known])
                wide = f" ± {margin:,.2f}" if 0 < margin < math.inf else ""
                row[title] = f"{mean:,.2f}{wide}"
        rows.append(row)
    return rows


def write_table(outcomes: Sequence[Outcome], path: Path) -> None:
    """A row an outcome: its scenario's fields, then its metrics."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [one["scenario"] | one["metrics"] for one in outcomes]
    write_atomically(path, lambda new: pq.write_table(pa.Table.from_pylist(rows), new))


def _absolute(scenario: Scenario) -> Scenario:
    """With paths that mean the same in every process of every node."""
    return replace(
        scenario,
        trace=scenario.trace.resolve(),
        cluster=scenario.cluster.resolve(),
        measured=None if scenario.measured is None else scenario.measured.resolve(),
        forecast=_resolved(scenario.forecast),
        faults=_resolved(scenario.faults),
    )


def _resolved(text: str) -> str:
    """A path of what is there; else it is a name, an address or numbers."""
    return str(Path(text).resolve()) if text and Path(text).exists() else text


def _write(path: Path, outcome: Outcome) -> None:
    text = json.dumps(outcome, allow_nan=False)
    write_atomically(path, lambda new: new.write_text(text))
