"""Policy wrapper that checks every answer of a policy against the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from presage.errors import ImpossibleActionError
from presage.schedulers.core.action import (
    Action,
    Migrate,
    Pause,
    Preempt,
    Reserve,
    Resize,
    Resume,
    Start,
)
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus
from presage.schedulers.core.policy import Demand, Policy
from presage.schedulers.core.queue import Key
from presage.schedulers.core.state import State
from presage.system.text.user_code import describe_exception

T = TypeVar("T")
MOST_DECISIONS = 20_000  # of one case, of which no policy that makes progress needs so many
NEVER_RAISES = "it raises no exception, whatever is predicted"
SAME_ANSWERS = "equal inputs give equal answers"
NO_CHANGES = "it changes none of its arguments"
DECLARED = "it does only what its needs declare"
DEMAND = "a start allocates what demand() answers"
ENDS = "all jobs end"
_RESIZES = (Resize, Migrate, Pause, Resume)


class BrokenPolicyError(AssertionError):
    """A policy broke a law of the contract; the message names the law and the counter-example."""


class CheckedPolicy(Policy):
    """Policy that behaves like another one, and checks each of its answers.

    Parameters
    ----------
    make : callable
        Makes the policy. For each decision a new one is made, too: a decision may not depend on
        earlier ones.
    """

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make, self._policy = make, make()
        self.needs = self._policy.needs
        self._decisions = 0

    def key(self, job: Job, status: JobStatus, forecasts: Forecasts) -> Key:
        """Return the policy's key, after checks."""
        key = _called("key", lambda: self._policy.key(job, status, forecasts))
        if not isinstance(key, tuple):
            raise BrokenPolicyError(f"a key is a tuple: key() returned {_typed(key)}")
        again = _called("key", lambda: self._make().key(job, status, forecasts))
        if key != again:
            raise BrokenPolicyError(f"{SAME_ANSWERS}: key() returned {key}, then {again}")
        return key

    def decide(self, state: State, forecasts: Forecasts, rng: Random) -> Sequence[Action]:
        """Return the policy's decision, after checks."""
        self._decisions += 1
        if self._decisions > MOST_DECISIONS:
            raise BrokenPolicyError(f"{ENDS}: no end after {MOST_DECISIONS:,} decisions")
        before, drawn = picture_of(state), rng.getstate()
        actions = _called("decide", lambda: self._policy.decide(state, forecasts, rng))
        _check_type(actions)
        if picture_of(state) != before:
            raise BrokenPolicyError(f"{NO_CHANGES}: decide() changed the state at {_at(state)}")
        rng_again = Random()  # noqa: S311 - draws no secrets
        rng_again.setstate(drawn)
        again = _called("decide", lambda: self._make().decide(state, forecasts, rng_again))
        if list(again) != list(actions):
            raise BrokenPolicyError(
                f"{SAME_ANSWERS}: at {_at(state)} decide() returned {list(actions)}, and "
                f"{list(again)} of a new policy"
            )
        for action in actions:
            self._check(action, state, forecasts)
        return actions

    def demand(
        self, job: Job, kind: str, cluster: Cluster, forecasts: Forecasts, *, overflows: int = 0
    ) -> Demand:
        """Return the policy's demand."""
        return self._policy.demand(job, kind, cluster, forecasts, overflows=overflows)

    def _check(self, action: Action, state: State, forecasts: Forecasts) -> None:
        """Raise BrokenPolicyError if an action is not declared."""
        for declared, types, name in (
            (self.needs.preempts, (Preempt,), "preempts"),
            (self.needs.resizes or self._scales(action, state), _RESIZES, "resizes"),
            (self.needs.plans_gangs, (Reserve,), "plans_gangs"),
        ):
            withdraws = isinstance(action, Preempt) and action.job_id in state.reserved
            if isinstance(action, types) and not declared and not withdraws:
                raise BrokenPolicyError(f"{DECLARED}: {name} is False, and it decided {action}")
        if isinstance(action, Start) and action.job_id in {job.job_id for job in state.pending}:
            for allocation in action.allocations:
                self._check_demand(action, allocation, state, forecasts)

    def _scales(self, action: Action, state: State) -> bool:
        """Whether an action changes the number of devices of an elastic job, as is declared."""
        if not (self.needs.scales and isinstance(action, Resize)):
            return False
        return action.job_id in state.running and state.job(action.job_id).is_elastic

    def _check_demand(
        self, start: Start, allocation: Allocation, state: State, forecasts: Forecasts
    ) -> None:
        job, cluster = state.job(start.job_id), state.cluster
        if not 0 <= allocation.device < cluster.devices:
            return
        kind = cluster.kind_of(allocation.device)
        overflows = state.status(job.job_id).overflows
        demand = _called(
            "demand",
            lambda: self._policy.demand(job, kind, cluster, forecasts, overflows=overflows),
        )
        whole = Demand(FULL_DEVICE_MILLI, cluster.memory_of[kind])
        if self.needs.allocation == "exclusive" and demand != whole:
            raise BrokenPolicyError(
                f"{DECLARED}: allocation is exclusive, and demand() answered {demand}"
            )
        if (allocation.compute_milli, allocation.memory_bytes) != demand:
            raise BrokenPolicyError(f"{DEMAND}: that is {demand} for {kind!r}, and it was {start}")


def picture_of(state: State) -> tuple[object, ...]:
    """Return all of a state that a policy could change by mistake."""
    ledger = state._ledger
    devices, nodes = range(state.cluster.devices), range(len(state.cluster.nodes))
    return (
        {job_id: state.status(job_id) for job_id in ledger.jobs},
        list(state.running.items()),
        [job.job_id for job in state.pending],
        [state.jobs_on(device) for device in devices],
        [ledger.idle.count_on(node) for node in nodes],
        ledger.capacity.compute_milli.tolist(),
        ledger.capacity.memory_bytes.tolist(),
        state.down,
        state.failed_devices,
        {name: list(found) for name, found in state.outages.outages.items()},
    )


def _called(what: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except (BrokenPolicyError, ImpossibleActionError):
        raise
    except Exception as error:
        why = f"{what}() raised {describe_exception(error)}"
        raise BrokenPolicyError(f"{NEVER_RAISES}: {why}") from error


def _check_type(actions: Any) -> None:
    if not isinstance(actions, list | tuple):
        raise BrokenPolicyError(f"decide returns a list of actions, not {_typed(actions)}")
    for action in actions:
        if not isinstance(action, Action):
            raise BrokenPolicyError(f"decide returns actions, not {_typed(action)}: {action!r}")
        allocations = getattr(action, "allocations", ())
        if not isinstance(allocations, tuple) or not all(
            isinstance(one, Allocation) for one in allocations
        ):
            raise BrokenPolicyError(f"allocations are a tuple of Allocation, not as in {action}")


def _typed(thing: Any) -> str:
    return f"something of type {type(thing).__name__}"


def _at(state: State) -> str:
    return f"{state.now_s:g} s"
