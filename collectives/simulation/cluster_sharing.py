"""Step times of the gangs of a cluster that share its switches, for ``presage simulate --inc``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.core.costs import Link, ring_s
from presage.collectives.simulation.compare import make_rule
from presage.collectives.simulation.phased_job import PhasedJob, Way, overlapping_calls
from presage.collectives.simulation.simulate import simulate_phases
from presage.schedulers.core.capacity.job_switches import Switch, job_switches, switches
from presage.schedulers.core.topology import Topology

BUCKETS = 4  # AllReduces of an iteration
SIMULATED_STEPS = 40  # of the slowest gang that shares a switch
PLANS = 80  # of a simulation, if more would only take time
JITTER = 0.03
GOLDEN = 0.618034  # spreads the starts of gangs over an iteration

Key = tuple[float, int, int, tuple[str, ...]]  # step, gradient bytes, nodes, switches


class Gang(Protocol):
    """Gang on several nodes; ``presage.schedulers.simulator`` has the class."""

    @property
    def job_id(self) -> str:
        """Unique id."""
        ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of its nodes."""
        ...

    @property
    def step_s(self) -> float:
        """Step time with AllReduce by ring; 0 if unknown."""
        ...

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients; 0 if unknown."""
        ...


class ClusterSharing:
    """Factors on the step times of gangs, from a simulation of their phases.

    The ranks are the nodes: devices of a node add up their gradients first. Ring, gradients in
    ``BUCKETS`` equal AllReduces and their overlap with the backward pass are assumed in the step
    time that is given. Gangs that share no switch, also not through others, are simulated apart.
    The arbiter has its default options, but plans less often if steps are long.

    Parameters
    ----------
    topology : Topology
        Topology with the slots of its switches.
    link : Link
        Link of a node.
    rule : str
        Rule by which gangs share switches, see ``compare.RULES``.

    Raises
    ------
    ValueError
        The rule is unknown.
    """

    def __init__(self, topology: Topology, link: Link, rule: str = "time-saved") -> None:
        make_rule(rule, (), {}, ArbiterOptions())  # fails here if it is unknown
        self._topology, self._link, self._rule = topology, link, rule
        self._slots = {switch.name: switch.slots for switch in switches(topology)}
        self._switches: dict[tuple[str, ...], tuple[Switch, ...]] = {}
        self._cache: dict[tuple[Key, ...], tuple[float, ...]] = {}

    def factors(self, gangs: Sequence[Gang]) -> Mapping[str, float]:
        """Return the step time of each gang that uses a switch over that by ring."""
        keys: dict[str, Key] = {}
        for gang in gangs:
            names = tuple(switch.name for switch in self._switches_of(gang.nodes))
            if names and gang.step_s > 0 and gang.gradient_bytes > 0:
                step_s = float(f"{gang.step_s:.3g}")  # few digits: more results are found again
                keys[gang.job_id] = (step_s, gang.gradient_bytes, len(gang.nodes), names)
        found: dict[str, float] = {}
        for group in _connected(keys):
            ordered = sorted(group, key=lambda job_id: (keys[job_id], job_id))
            values = self._group_factors(tuple(keys[job_id] for job_id in ordered))
            found.update(zip(ordered, values, strict=True))
        return found

    def _switches_of(self, nodes: tuple[str, ...]) -> tuple[Switch, ...]:
        if nodes not in self._switches:
            self._switches[nodes] = job_switches(self._topology, nodes)
        return self._switches[nodes]

    def _group_factors(self, keys: tuple[Key, ...]) -> tuple[float, ...]:
        if keys not in self._cache:
            jobs = [gang_job(f"{i:04}", key, self._link, i) for i, key in enumerate(keys)]
            slots = {name: self._slots[name] for job in jobs for name in job.switches}
            duration_s, options = _run_of(jobs)
            by_rule = {
                name: simulate_phases(
                    jobs,
                    slots,
                    make_rule(name, jobs, slots, options),
                    duration_s=duration_s,
                )
                for name in (self._rule, "ring")
            }
            self._cache[keys] = tuple(
                by_rule[self._rule][job.job_id].iteration_s
                / by_rule["ring"][job.job_id].iteration_s
                for job in jobs
            )
        return self._cache[keys]


def _run_of(jobs: Sequence[PhasedJob]) -> tuple[float, ArbiterOptions]:
    """Return the time to simulate in seconds, and the options of the arbiter."""
    options = ArbiterOptions()
    longest_s = max(job.solo_s(Way.RING) for job in jobs)
    duration_s = SIMULATED_STEPS * max(longest_s, options.plan_s)
    # Often enough that no window ends before the next one is there.
    seldom_s = min(duration_s / PLANS, options.planner.horizon_s / 4)
    return duration_s, replace(options, plan_s=max(options.plan_s, seldom_s))


def gang_job(job_id: str, key: Key, link: Link, position: int) -> PhasedJob:
    """Return the phases of a gang whose step takes ``step_s`` by ring.

    If the ring alone takes longer than that, the gang has only AllReduces, on a link that is as
    much faster.
    """
    step_s, gradient_bytes, nodes, names = key
    sizes = [gradient_bytes // BUCKETS] * BUCKETS
    part_s = step_s / (BUCKETS * ring_s(nodes, sizes[0], link))
    used = link if part_s > 1 else replace(
        link,
        latency_s=link.latency_s * part_s,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / part_s,
    )  # fmt: skip

    def job(compute_s: float) -> PhasedJob:
        start_s = (position * GOLDEN) % 1.0 * step_s
        calls = overlapping_calls(compute_s, sizes)
        return PhasedJob(job_id, nodes, names, used, calls, start_s, JITTER)

    low_s, high_s = 0.0, step_s
    for _ in range(40):
        middle_s = (low_s + high_s) / 2
        if job(middle_s).solo_s(Way.RING) > step_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return job(low_s)


def _connected(keys: Mapping[str, Key]) -> Iterator[list[str]]:
    """Yield the gangs that share switches, also through others."""
    left = dict(keys)
    while left:
        job_id, key = next(iter(left.items()))
        del left[job_id]
        group, names = [job_id], set(key[3])
        while joined := [other for other, k in left.items() if names & set(k[3])]:
            for other in joined:
                names |= set(left.pop(other)[3])
            group += joined
        yield group
