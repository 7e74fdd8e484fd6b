"""Training jobs that run at the same time around one switch, each rank on a machine of its own."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from presage.collectives.demo.training_job import TrainingJob
from presage.collectives.star_network import StarNetwork
from presage.errors import ServiceError

_READY_S, _END_S = 240.0, 120.0
_PORT = 29500  # of the store of each job, at the machine of its first rank


class Iteration(NamedTuple):
    """Backward pass of one iteration at rank 0, which ends when the gradients are summed.

    Attributes
    ----------
    start_s, end_s : float
        Its bounds on the monotonic clock.
    is_on_switch : bool
        Whether the switch computed at least one AllReduce of it.
    """

    start_s: float
    end_s: float
    is_on_switch: bool


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job did in the measured time.

    Attributes
    ----------
    iterations : list of Iteration
        Iterations that ended in the measured time.
    counts : dict of str to int
        AllReduces of the whole run, as ``statistics`` of the backend.
    losses : list of float
        Loss of each iteration at rank 0.
    is_equal : bool
        Whether the parameters of all ranks are bitwise equal at the end.
    """

    job: TrainingJob
    iterations: list[Iteration]
    counts: dict[str, int]
    losses: list[float]
    is_equal: bool

    @property
    def iteration_s(self) -> float:
        """Mean time of an iteration."""
        first, last = self.iterations[0], self.iterations[-1]
        return (last.end_s - first.end_s) / (len(self.iterations) - 1)

    @property
    def inc_share(self) -> float:
        """Share of the iterations that used the switch."""
        return statistics.fmean(one.is_on_switch for one in self.iterations)


@dataclass
class _Ranks:
    """Processes of one job."""

    job: TrainingJob
    processes: list[subprocess.Popen[str]] = field(default_factory=list)


def run_jobs(
    network: StarNetwork,
    jobs: Sequence[TrainingJob],
    seconds: float,
    *,
    arbiter: str = "",
    token: str = "",
    with_arbiter: Callable[[TrainingJob], bool] = lambda _: True,
    after_begin: Callable[[], None] = lambda: None,
    before_end: Callable[[], None] = lambda: None,
    warm_up_s: float = 0.0,
    logs: Path,
) -> list[JobResult]:
    """Run jobs together and measure them once all of them train.

    Parameters
    ----------
    seconds : float
        Time to measure.
    arbiter : str
        Address of the arbiter; "" runs everything by ring.
    with_arbiter : callable
        Whether a job uses it.
    after_begin, before_end : callable
        Called when the measured time begins, and when it is over, while the jobs run.
    warm_up_s : float
        Time that all jobs train before they are measured, in which the arbiter learns their rhythm.
    logs : Path
        Folder for what the ranks write to their standard error.

    Raises
    ------
    ServiceError
        A rank ended, or did not become ready in time.
    """
    with ExitStack() as stack:
        running, first_host = [], 0
        for job in jobs:
            variables = {"PRESAGE_INC_JOB": job.name, "PRESAGE_INC_TOKEN": token}
            if arbiter and with_arbiter(job):
                variables["PRESAGE_INC_ARBITER"] = arbiter
            ranks = stack.enter_context(_started(network, job, first_host, variables, logs))
            running.append(ranks)
            first_host += job.ranks
        for ranks in running:
            _read(ranks.processes[0], _READY_S)
        time.sleep(warm_up_s)
        begin_s = time.monotonic()
        after_begin()
        time.sleep(seconds)
        end_s = time.monotonic()
        before_end()
        for ranks in running:
            ranks.processes[0].terminate()
        return [_result(ranks, begin_s, end_s) for ranks in running]


def throughput(results: Sequence[JobResult], reference: Sequence[JobResult]) -> list[float]:
    """Return the throughput of each job over that of the reference run."""
    return [r.iteration_s / own.iteration_s for own, r in zip(results, reference, strict=True)]


@contextmanager
def _started(
    network: StarNetwork, job: TrainingJob, first_host: int, variables: dict[str, str], logs: Path
) -> Iterator[_Ranks]:
    ranks = _Ranks(job)
    try:
        for rank in range(job.ranks):
            host = first_host + rank
            environment = {
                **os.environ, **variables,
                "MASTER_ADDR": network.address(first_host), "MASTER_PORT": str(_PORT),
                "RANK": str(rank), "WORLD_SIZE": str(job.ranks), "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "eth0",
            }  # fmt: skip
            words = [sys.executable, "-m", "presage.collectives.demo.training_job", job.to_json()]
            with (logs / f"{job.name}.{rank}.log").open("w") as log:
                ranks.processes.append(
                    subprocess.Popen(
                        [*network.host_prefix(host), *words],
                        stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
                    )
                )  # fmt: skip
        yield ranks
    finally:
        for process in ranks.processes:
            process.kill()
            process.communicate()


def _read(process: subprocess.Popen[str], timeout_s: float) -> Any:
    """Return the next line of a rank."""
    stdout: IO[str] | None = process.stdout
    assert stdout is not None
    ready, _, _ = select.select([stdout], [], [], timeout_s)
    line = stdout.readline() if ready else ""
    if not line:
        raise ServiceError(f"a rank ended early or was not ready within {timeout_s:g} s")
    return json.loads(line)


def _result(ranks: _Ranks, begin_s: float, end_s: float) -> JobResult:
    rows = [_read(process, _END_S) for process in ranks.processes]
    first = rows[0]
    before = [0, *first["summed"]]
    iterations = [
        Iteration(start_s, stop_s, now > then)
        for start_s, stop_s, now, then in zip(
            first["starts_s"], first["ends_s"], first["summed"], before, strict=False
        )
        if begin_s <= stop_s <= end_s
    ]
    if len(iterations) < 3:
        raise ServiceError(
            f"job {ranks.job.name} did {len(iterations)} iterations in the time; measure for longer"
        )
    is_equal = len({row["digest"] for row in rows}) == 1
    return JobResult(ranks.job, iterations, first["counts"], first["losses"], is_equal)
