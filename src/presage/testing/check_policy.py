"""Contract suite of policies: laws on random small clusters and traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from presage.errors import ImpossibleActionError
from presage.schedulers.core.job_status import Phase
from presage.schedulers.core.policy import Policy
from presage.schedulers.policies.policy_registry import policy_maker
from presage.schedulers.simulator.ground_truth.ground_truth import TraceDurations
from presage.schedulers.simulator.simulation import Simulation
from presage.testing.case import Case, CaseForecaster, can_run
from presage.testing.checked_policy import ENDS, SAME_ANSWERS, BrokenPolicyError, CheckedPolicy

ACCEPTED = "the ledger accepts every decision"
CAPACITY = "no device is held beyond its capacity"


def check_policy(
    policy: type[Policy] | Callable[[], Policy] | Policy | str, *, examples: int = 100
) -> None:
    """Check that a policy keeps the contract of :class:`presage.schedulers.core.policy.Policy`.

    The laws are checked on random clusters of a few devices and traces of a few jobs:

    - equal inputs give equal answers, also of a policy that was just made;
    - it changes none of its arguments;
    - it raises no exception, also if forecasts are missing, NaN or infinite;
    - the ledger accepts every decision: gangs are whole, no device is held beyond its capacity, and
      no best-effort job overtakes a latency-sensitive one;
    - all jobs end that fit on the cluster;
    - it does only what its ``needs`` declare, and allocates what ``demand`` answers.

    Parameters
    ----------
    policy : class, function, object or str
        Policy, or what makes one, or its name.
    examples : int
        Number of random cases.

    Raises
    ------
    BrokenPolicyError
        The policy breaks a law; the message names it and contains a small counter-example.
    ModuleNotFoundError
        The package ``hypothesis`` is not installed.
    """
    try:
        import hypothesis
        import hypothesis.errors
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "check_policy needs the package 'hypothesis'; pip install 'presage[testing]'",
            name="hypothesis",
        ) from None
    from presage.testing.known_cases import KNOWN_CASES
    from presage.testing.random_cases import cases

    make = policy_maker(policy)
    broken: list[BrokenPolicyError] = []

    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        report_multiple_bugs=False,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(cases())
    def holds(case: Case) -> None:
        try:
            check_case(make, case)
        except BrokenPolicyError as error:
            broken.append(error)
            raise

    try:
        holds()
    except (BrokenPolicyError, hypothesis.errors.Flaky):
        # The last is the smallest; a policy that draws its decisions is "flaky" to hypothesis.
        raise BrokenPolicyError(*broken[-1].args) from None
    for known in KNOWN_CASES:
        check_case(make, known)


def check_case(make: Callable[[], Policy], case: Case) -> None:
    """Check all laws on one case.

    Raises
    ------
    BrokenPolicyError
        One of them is broken.
    """
    try:
        done = _simulated(CheckedPolicy(make), case)
        _check_ends(done, case)
        _check_capacity(done)
        again = _simulated(make(), case)
        if list(again.log.lines()) != list(done.log.lines()):
            raise BrokenPolicyError(f"{SAME_ANSWERS}: two simulations of one trace differ")
    except (BrokenPolicyError, ImpossibleActionError) as error:
        law = f"{ACCEPTED}: {error}" if isinstance(error, ImpossibleActionError) else str(error)
        name = type(make()).__name__
        raise BrokenPolicyError(f"{name} breaks a law: {law}\ncounter-example:\n{case}") from error


def _simulated(policy: Policy, case: Case) -> Simulation:
    simulation = Simulation(
        case.cluster,
        policy,
        CaseForecaster(case.predictions),
        TraceDurations(case.duration_s),
        case.jobs,
    )
    simulation.run()
    return simulation


def _check_ends(done: Simulation, case: Case) -> None:
    phase_of = {one.job.job_id: one.phase for one in done.results}
    for job in case.jobs:
        expected = Phase.FINISHED if can_run(job, case.cluster) else Phase.REJECTED
        phase = phase_of.get(job.job_id)
        if phase is None:
            raise BrokenPolicyError(f"{ENDS}: job {job.job_id!r} never does")
        if phase is not expected:
            raise BrokenPolicyError(f"{ENDS}: job {job.job_id!r} is {phase}, not {expected}")


def _check_capacity(done: Simulation) -> None:
    """Sum what jobs hold, event by event, apart from the ledger's own sums."""
    held: dict[str, tuple[tuple[int, int, int], ...]] = {}
    cluster = done.ledger.cluster
    for at_s, what, job_id, more in done.log.entries:
        if what in ("start", "resize", "migrate", "shrink"):
            held[job_id] = tuple(more)
        elif what in ("finish", "preempt", "overflow", "lost"):
            held.pop(job_id, None)
        compute: Counter[int] = Counter()
        memory: Counter[int] = Counter()
        for allocations in held.values():
            for device, compute_milli, memory_bytes in allocations:
                compute[device] += compute_milli
                memory[device] += memory_bytes
        for device, whole in enumerate(cluster.full_allocations):
            if compute[device] > whole.compute_milli or memory[device] > whole.memory_bytes:
                raise BrokenPolicyError(f"{CAPACITY}: {cluster.name_of(device)} at {at_s:g} s")
