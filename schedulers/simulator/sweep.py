"""Sweeps: a simulation for every combination of what a file names, on all cores or on Ray.

.. code-block:: yaml

    trace: [philly.csv, itp.csv]        # whatever is a list is swept over
    cluster: cluster.yaml               # files are looked for beside this one
    policy: [fifo, sjf, packing]
    forecast: [none, oracle]
    seed: [0, 1, 2]

Each outcome is a file of its own, named by what it was made of: a sweep that was stopped goes on
with those that are missing, and one that cannot be simulated holds up no other.
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
from presage.schedulers.simulator.scenario import (
    NO_RELEASE,
    Scenario,
    release_served,
    simulation_of,
    stamp,
)
from presage.system.atomic_file import write_atomically
from presage.system.known_names import check_known
from presage.system.worker_processes import done_by_workers

Outcome = dict[str, Any]  # of a scenario: its fields, and what its schedule was worth

_FILES = ("trace", "cluster", "measured")
# What a value of the file may be, by the type of the scenario's field.
_VALUES: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number (to YAML, 1e3 is text)"),
    bool: ((bool,), "true or false"),
    str: ((str,), "text; put it in quotes"),
    Path: ((str,), "the name of a file"),
    Path | None: ((str, NoneType), "the name of a folder"),
}


def read_sweep(path: Path) -> list[Scenario]:
    """A scenario for every combination, in the order of the file; equal ones are one.

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
    types = get_type_hints(Scenario)
    check_known(content, types, f"{path}: ")
    for key in ("trace", "cluster"):
        if key not in content:
            raise ConfigError(f"{path}: no {key}; name a file, or a list of them")
    try:
        lists = [_values(key, types[key], given, path.parent) for key, given in content.items()]
        made = [Scenario(**dict(zip(content, values, strict=True))) for values in product(*lists)]
    except (ConfigError, OverflowError) as error:  # of a whole number that no float can hold
        raise ConfigError(f"{path}: {error}") from None
    if any(one.from_day for one in made) and not any(Path(one.faults).is_file() for one in made):
        raise ConfigError(f"{path}: from_day is of a file of faults; name one as `faults`")
    # Equal scenarios have equal outcomes, which would pass for several.
    return list(dict.fromkeys(made))


def _values(key: str, kind: Any, given: Any, beside: Path) -> list[Any]:
    """Of one key, each as the scenario has it."""
    types, must_be = _VALUES[kind]
    values = given if isinstance(given, list) else [given]
    if not values:
        raise ConfigError(f"{key} is an empty list; give it a value, or leave it out")
    for value in values:
        of_kind = isinstance(value, types) and isinstance(value, bool) == (kind is bool)
        if not of_kind or "\0" in str(value):
            raise ConfigError(f"{key}={value!r} is not {must_be}")
    if kind is float:
        return [float(value) for value in values]
    return [_found(key, value, beside) if isinstance(value, str) else value for value in values]


def _found(key: str, text: str, beside: Path) -> str | Path:
    """A file of the sweep is looked for beside it."""
    if key in _FILES:
        return beside / text
    if (key == "forecast" and (beside / text).is_dir()) or (
        key == "faults" and (beside / text).is_file()
    ):
        return str(beside / text)
    return text


def run_sweep(
    scenarios: Sequence[Scenario],
    folder: Path,
    *,
    workers: int,
    ray: str | None,
    progress: Callable[[], None],
) -> list[Outcome | PresageError]:
    """The outcome of each scenario, in order; those that ``folder`` has are not made again.

    An error is in the place of each that cannot be simulated, or whose process was killed.

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
    _release_served.cache_clear()
    found: dict[int, Outcome | PresageError] = {}
    missing: dict[int, Path] = {}
    for i, scenario in enumerate(scenarios):
        try:
            path = folder / f"{digest_of(scenario)}.json"
        except (PresageError, OSError) as error:
            found[i] = PresageError(str(error))
        else:
            metrics = _metrics(path)
            if metrics is None:
                missing[i] = path
                continue
            found[i] = _outcome(scenario, metrics)
        progress()
    asked = [scenarios[i] for i in missing]
    with closing(_on_ray(asked, ray) if ray else _on_processes(asked, workers)) as made:
        for position, outcome in made:
            i = list(missing)[position]
            found[i] = outcome
            if not isinstance(outcome, PresageError):
                _write(missing[i], outcome)
            progress()
    return [found[i] for i in range(len(scenarios))]


def _metrics(path: Path) -> dict[str, Any] | None:
    """Of an outcome that is there and whole, whatever its files were called then."""
    from presage.schedulers.simulator.schedule_metrics import Metrics

    try:
        found = json.loads(path.read_bytes())["metrics"]
        whole = found.keys() == {field.name for field in fields(Metrics)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return found if whole else None


def digest_of(scenario: Scenario) -> str:
    """Of a scenario's values, the content of its files, the release that is served, and the code.

    Raises
    ------
    PresageError
        The cluster is wrong, or the service does not answer.
    """
    told = {**_plain(scenario), "code": _code()}
    for name in ("trace", "measured", "forecast", "faults"):
        path = getattr(scenario, name)
        if path and Path(path).exists():
            told[name] = _content(Path(path))
    told["cluster"] = _devices(scenario.cluster, stamp(scenario.cluster))
    if scenario.forecast not in NO_RELEASE and not Path(scenario.forecast).exists():
        told["release"] = _release_served(scenario.forecast)
        if isinstance(told["release"], PresageError):
            raise told["release"]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _code() -> list[str]:
    """Of all that makes an outcome of a scenario."""
    package = Path(presage.__file__).parent
    return [_content((package / name).resolve()) for name in ("schedulers", "features")]


@lru_cache(maxsize=64)
def _devices(path: Path, _stamp: object) -> str:
    """Of a cluster as it was read, with the listings that its file names."""
    from presage.schedulers.cluster_files.cluster_file import read_cluster

    return hashlib.sha256(repr(read_cluster(path)).encode()).hexdigest()


@lru_cache(maxsize=64)
def _release_served(forecast: str) -> str | PresageError:
    """Asked once a sweep, also of who does not answer."""
    try:
        return release_served(forecast)
    except PresageError as error:
        return error


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


def _outcome(scenario: Scenario, metrics: dict[str, Any]) -> Outcome:
    return {"scenario": _plain(scenario), "metrics": metrics}


def outcome_of(scenario: Scenario) -> Outcome | PresageError:
    """Simulate, or say why not; what a process of its own is asked to do."""
    from presage.schedulers.simulator.schedule_metrics import metrics_of

    try:
        done = simulation_of(scenario)
        done.run()
    except (PresageError, OSError) as error:
        return PresageError(str(error))  # which any process can read
    return _outcome(scenario, asdict(metrics_of(done)))


def _on_processes(
    asked: Sequence[Scenario], workers: int
) -> Generator[tuple[int, Outcome | PresageError]]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return done_by_workers(outcome_of, asked, workers)


def _on_ray(
    asked: Sequence[Scenario], address: str
) -> Generator[tuple[int, Outcome | PresageError]]:
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
        position_of = {simulate.remote(_absolute(one)): i for i, one in enumerate(asked)}
        left = list(position_of)
        while left:
            (done,), left = ray.wait(left)
            try:
                outcome = ray.get(done)
            except ray.exceptions.RayError as error:  # such as of a worker that was killed
                outcome = PresageError(" ".join(str(error).split()))
            yield position_of[done], outcome
    finally:
        if mine:
            ray.shutdown()


def device_aliases(scenarios: Sequence[Scenario]) -> list[str]:
    """Each by what differs between them, such as "policy=sjf seed=1"; one alone by its trace."""
    plain = [_plain(scenario) for scenario in scenarios]
    varied = _varied(plain) or ["trace"]
    return [" ".join(f"{key}={_shown(key, one[key])}" for key in varied) for one in plain]


def _varied(plain: Sequence[dict[str, Any]]) -> list[str]:
    return [key for key in plain[0] if len({str(one[key]) for one in plain}) > 1]


def _shown(key: str, value: Any) -> str:
    return Path(value).name if key in _FILES else str(value)


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

    Columns are what differs between scenarios, then how many jobs finished, of which the metrics
    are that follow.
    """
    from presage.schedulers.simulator.confidence import mean_and_margin

    varied = [key for key in _varied([one["scenario"] for one in outcomes]) if key != "seed"]
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(tuple(str(one["scenario"][key]) for key in varied), []).append(one)
    rows = []
    for values, alike in groups.items():
        row = {key: _shown(key, value) for key, value in zip(varied, values, strict=True)}
        row["finished"] = _finished([one["metrics"] for one in alike])
        for metric, (title, unit) in _SHOWN.items():
            known = [one["metrics"][metric] for one in alike if one["metrics"][metric] is not None]
            row[title] = "-"
            if known:
                mean, margin = mean_and_margin([value / unit for value in known])
                wide = f" ± {margin:,.2f}" if 0 < margin < math.inf else ""
                row[title] = f"{mean:,.2f}{wide}"
        rows.append(row)
    return rows


def _finished(alike: Sequence[dict[str, Any]]) -> str:
    """How many jobs finished on average, and of how many unless all of them did."""
    mean = sum(one["jobs"] for one in alike) / len(alike)
    jobs = sum(alike[0][became] for became in ("jobs", "failed", "rejected", "starved"))
    return f"{jobs:,}" if mean == jobs else f"{mean:,.2f} of {jobs:,}"


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
