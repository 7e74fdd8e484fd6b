"""Pauses of the same job under Presage, torchrun and torchft, in alternating rounds."""

from __future__ import annotations

import os
import platform
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.elastic.changes import killed_pauses, planned_pauses
from benchmarks.elastic.commits import lost_s
from benchmarks.elastic.peer_jobs import PeerJob, TorchftJob, TorchrunJob
from benchmarks.serving.environments import environment

ROUNDS, CHANGES_PER_ROUND = 3, 4  # of each kind; torchrun makes one change of each kind a round
TIMEOUT_S = 60.0
_BETWEEN_S = 1.0  # of training between two changes
_SMALL, _LARGE = 2, 3  # workers


def peers() -> dict[str, Any]:
    """Return the pauses of each system, with versions, and the load at the end of each round."""
    torchft = environment("torchft")
    systems: dict[str, Callable[[int], dict[str, Any]]] = {
        "presage": _presage,
        "torchft": lambda seed: _changes(
            TorchftJob(torchft.python, _SMALL), CHANGES_PER_ROUND, seed
        ),
        "torchrun": _torchrun,
    }
    found: dict[str, Any] = {name: _none() for name in systems}
    loads = [os.getloadavg()[0]]
    for number in range(ROUNDS):
        for name, measure in systems.items():
            _add(found[name], measure(number))
            loads.append(os.getloadavg()[0])
            print(f"round {number}: {name} {found[name]}", flush=True)
    versions = {name: torchft.packages[name] for name in ("torch", "torchft")}
    return found | {"versions": versions | {"python": platform.python_version()}, "loads": loads}


def _none() -> dict[str, Any]:
    return {"grow": [], "kill": [], "grow_hangs": 0, "kill_hangs": 0, "host_kills": []}


def _add(total: dict[str, Any], one: dict[str, Any]) -> None:
    for key, value in one.items():
        total[key] += value


def _presage(seed: int) -> dict[str, Any]:
    grown = planned_pauses(2 * CHANGES_PER_ROUND)["grow"]
    killed, hangs = killed_pauses(_LARGE, CHANGES_PER_ROUND, seed)
    return _none() | {"grow": grown, "kill": killed, "kill_hangs": hangs}


def _torchrun(seed: int) -> dict[str, Any]:
    """Measure a change of each kind, and then a kill of the agent that serves the rendezvous."""
    job = TorchrunJob(sys.executable, _SMALL)
    return _changes(job, 1, seed, first_victim=1, then=_kill_host)


def _changes(
    job: PeerJob, repeats: int, seed: int, first_victim: int = 0,
    then: Callable[[PeerJob], str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure growing from 2 to 3 workers and killing one of 3, in turn."""
    rng, found, kind = random.Random(seed), _none(), "grow"
    try:
        for _ in range(repeats):
            kind = "grow"
            found["grow"].append(_grow(job))
            kind = "kill"
            found["kill"].append(_kill(job, rng.choice(list(job.workers)[first_victim:])))
        if then is not None:
            found["host_kills"].append(then(job))
    except TimeoutError as error:
        print(error, flush=True)
        found[f"{kind}_hangs"] += 1
    finally:
        job.close()
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
