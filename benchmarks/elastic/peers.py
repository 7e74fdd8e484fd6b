"""Pauses of the same job under Presage, torchrun and torchft, in alternating rounds."""

from __future__ import annotations

import os
import platform
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib.metadata import version
from typing import Any

from benchmarks.elastic.changes import killed_pauses, planned_pauses
from benchmarks.elastic.commits import lost_s
from benchmarks.elastic.peer_jobs import README_MS, SHORT_MS, PeerJob, TorchftJob, TorchrunJob
from benchmarks.serving.environments import environment

ROUNDS, CHANGES = 10, 3  # changes of each kind in a round
TIMEOUT_S = 60.0
_BETWEEN_S = 1.0  # of training between two changes
_SMALL, _LARGE = 2, 3  # workers


def peers() -> dict[str, Any]:
    """Return the pauses of each system, versions, and the load before and after each turn."""
    torchft = environment("torchft")
    systems: dict[str, Callable[[int], dict[str, Any]]] = {
        "presage": _presage,
        "torchft": partial(_torchft, torchft.python, SHORT_MS),
        "torchft_readme": partial(_torchft, torchft.python, README_MS),
        "torchrun": _torchrun,
    }
    found: dict[str, Any] = {name: _none() for name in systems}
    for number in range(ROUNDS):
        for name, measure in systems.items():
            load = os.getloadavg()[0]
            one = measure(number)
            _add(found[name], one | {"load": [load, os.getloadavg()[0]]})
            print(f"round {number}: {name} {one}", flush=True)
    versions = {name: torchft.packages[name] for name in ("torch", "torchft")}
    versions |= {"torchrun": version("torch"), "python": platform.python_version()}
    return {"systems": found, "versions": versions}


def _none() -> dict[str, Any]:
    return {"grow": [], "kill": [], "grow_hangs": 0, "kill_hangs": 0, "host_kills": [], "load": []}


def _add(total: dict[str, Any], one: dict[str, Any]) -> None:
    for key, value in one.items():
        total[key] += value


def _presage(seed: int) -> dict[str, Any]:
    grown = planned_pauses(2 * CHANGES)["grow"]
    killed, hangs = killed_pauses(_LARGE, CHANGES, seed)
    return _none() | {"grow": grown, "kill": killed, "kill_hangs": hangs}


def _torchft(python: str, lighthouse: dict[str, int], seed: int) -> dict[str, Any]:
    return _changes(lambda: TorchftJob(python, _SMALL, lighthouse), seed)


def _torchrun(seed: int) -> dict[str, Any]:
    """Measure changes, and then a kill of the agent that serves the rendezvous."""
    make = partial(TorchrunJob, sys.executable, _SMALL)
    return _changes(make, seed, first_victim=1, then=_kill_host)


def _changes(
    make: Callable[[], PeerJob], seed: int, first_victim: int = 0,
    then: Callable[[PeerJob], str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure growing from 2 to 3 workers and killing one of 3, in turn; stop at a hang."""
    rng, found, kind = random.Random(seed), _none(), "grow"
    try:
        with closing(make()) as job:
            for _ in range(CHANGES):
                kind = "grow"
                found["grow"].append(_grow(job))
                kind = "kill"
                found["kill"].append(_kill(job, rng.choice(list(job.workers)[first_victim:])))
            if then is not None:
                found["host_kills"].append(then(job))
    except TimeoutError as error:
        print(error, flush=True)
        found[f"{kind}_hangs"] += 1
    return found


def _grow(job: PeerJob) -> float:
    time.sleep(_BETWEEN_S)
    job.start()
    return _lost_s(job, _LARGE, None)


def _kill(job: PeerJob, victim: str) -> float:
    time.sleep(_BETWEEN_S)
    return _lost_s(job, _SMALL, job.kill(victim))


def _lost_s(job: PeerJob, workers: int, killed_s: float | None) -> float:
    """Wait for a change and return the time without progress."""
    before, job.generation = job.generation, job.wait_for_size(workers, TIMEOUT_S)
    time.sleep(_BETWEEN_S)
    return lost_s(job.commits(), before, job.generation, killed_s)


def _kill_host(job: PeerJob) -> str:
    """Kill the first agent and its worker; return what the rest of the job does."""
    time.sleep(_BETWEEN_S)
    job.kill(next(iter(job.workers)))
    try:
        job.wait_for_size(_SMALL - 1, TIMEOUT_S)
    except TimeoutError:
        return "hung" if job.is_alive() else "ended"
    return "continued"
