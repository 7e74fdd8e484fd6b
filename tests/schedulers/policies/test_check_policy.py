"""The contract suite of policies: our own policies pass it, and broken ones fail with a reason."""

from __future__ import annotations

import subprocess
import sys

import pytest

from presage.schedulers.core.action import Pause, Preempt, Reserve, Start, Wake
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.policy import Demand, Policy, PolicyNeeds
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.policies.policy_registry import POLICIES
from presage.testing import BrokenPolicyError, check_policy

SHARED = ("elastic:jobs_per_device=2", "elastic:jobs_per_device=3:most_slowdown=4")


@pytest.mark.parametrize("name", [*POLICIES, *SHARED, "backfill:reserve=all"])
def test_our_own_policies_keep_the_contract(name):
    check_policy(name, examples=60)


class Plain(Policy):
    """As docs/schedulers/simulating.md has it."""

    def __init__(self, depth: int = 100) -> None:
        self._depth = depth

    def decide(self, state, forecasts, rng):
        plan = state.plan()
        for place, job in enumerate(state.pending):
            if place >= self._depth or not plan.idle_count:
                break
            plan.start(job)
        return plan.actions


@pytest.mark.parametrize("policy", [Plain, Plain(3), lambda: Plain(depth=2)])
def test_a_policy_that_only_decides_keeps_the_contract(policy):
    check_policy(policy, examples=60)


class Evicts(Policy):
    """Runs latency-sensitive jobs instead of best-effort jobs that started last."""

    needs = PolicyNeeds(preempts=True)

    def decide(self, state, forecasts, rng):
        plan = state.plan()
        for job in state.pending:
            running = [*reversed(state.running)] if job.latency_sensitive else []
            while not plan.start(job):
                victim = next((one for one in running if not state.job(one).latency_sensitive), "")
                if not victim or not plan.preempt(victim):
                    break
                running.remove(victim)
        return plan.actions


def test_a_policy_that_preempts_by_its_plan_keeps_the_contract():
    check_policy(Evicts, examples=100)


class Overtakes(Policy):
    def decide(self, state, forecasts, rng):
        idle, actions = list(range(state.cluster.devices)), []
        idle = [device for device in idle if not state.jobs_on(device)]
        for job in reversed(list(state.pending)):
            kinds = job.kinds or state.cluster.kinds
            here = [device for device in idle if state.cluster.kind_of(device) in kinds]
            if len(here) >= job.fewest_gpus:
                mine = here[: job.gpus]
                idle = [device for device in idle if device not in mine]
                held = tuple(state.cluster.full_allocations[device] for device in mine)
                actions.append(Start(job.job_id, held))
        return actions


class TakesTooMuch(Policy):
    def decide(self, state, forecasts, rng):
        return [
            Start(job.job_id, state.cluster.full_allocations[: job.gpus]) for job in state.pending
        ]


class StartsNoJob(Policy):
    def decide(self, state, forecasts, rng):
        return [Wake(state.now_s + 1.0)]


class Remembers(Fifo):
    def __init__(self):
        self.decided = 0

    def decide(self, state, forecasts, rng):
        self.decided += 1
        return super().decide(state, forecasts, rng) if self.decided % 2 else []


class Draws(Fifo):
    def decide(self, state, forecasts, rng):
        import secrets

        return [*super().decide(state, forecasts, rng), Wake(state.now_s + secrets.randbits(60))]


class Meddles(Fifo):
    def decide(self, state, forecasts, rng):
        state._ledger.capacity.compute_milli[0] -= 1
        return super().decide(state, forecasts, rng)


class TrustsForecasts(Fifo):
    def decide(self, state, forecasts, rng):
        for job in state.pending:
            int(forecasts.runtime_s(job))
        return super().decide(state, forecasts, rng)


class PreemptsUndeclared(Fifo):
    def decide(self, state, forecasts, rng):
        actions = super().decide(state, forecasts, rng)
        return actions or [Preempt(job_id) for job_id in [*state.running][:1]]


class PausesUndeclared(Fifo):
    def decide(self, state, forecasts, rng):
        return super().decide(state, forecasts, rng) or [Pause(one) for one in state.running]


class ReservesUndeclared(Fifo):
    def decide(self, state, forecasts, rng):
        first = state.pending.first()
        if first is None or state.idle_count == 0:
            return []
        idle = next(d for d in range(state.cluster.devices) if not state.jobs_on(d))
        return [Reserve(first.job_id, (state.cluster.full_allocations[idle],), state.now_s + 1.0)]


class SharesUndeclared(Fifo):
    def decide(self, state, forecasts, rng):
        return [
            one._replace(allocations=tuple(g._replace(compute_milli=500) for g in one.allocations))
            for one in super().decide(state, forecasts, rng)
        ]


class DemandsUndeclared(Fifo):
    def demand(self, job, kind, cluster, forecasts, *, overflows=0):
        return Demand(FULL_DEVICE_MILLI // 2, 1)


class ChangesKeys(Fifo):
    def __init__(self):
        self.calls = 0

    def key(self, job, status, forecasts):
        self.calls += 1
        return (self.calls,)


class ReturnsWords(Policy):
    def decide(self, state, forecasts, rng):
        return ["start all"]


class ReturnsNothing(Policy):
    def decide(self, state, forecasts, rng):
        return None


class SplitsGangs(Policy):
    def decide(self, state, forecasts, rng):
        idle = [d for d in range(state.cluster.devices) if not state.jobs_on(d)]
        first = state.pending.first()
        held = tuple(Allocation(*state.cluster.full_allocations[d]) for d in idle[:1])
        return [Start(first.job_id, held)] if first and held else []


@pytest.mark.parametrize(
    ("policy", "law"),
    [
        (
            Overtakes,
            "the ledger accepts every decision: best-effort job .* takes devices on which the wait",
        ),
        (TakesTooMuch, "the ledger accepts every decision: action ., Start of job"),
        (SplitsGangs, "the ledger accepts every decision: .* the gang needs 2 members, got 1"),
        (StartsNoJob, "all jobs end: job '0' never does"),
        (Remembers, "equal inputs give equal answers: at . s decide"),
        (Draws, "equal inputs give equal answers: at . s decide"),
        (ChangesKeys, "equal inputs give equal answers: key"),
        (Meddles, "it changes none of its arguments: decide"),
        (TrustsForecasts, "it raises no exception, whatever is predicted: .* cannot convert float"),
        (PreemptsUndeclared, "only what its needs declare: preempts is False, .* Preempt"),
        (PausesUndeclared, "only what its needs declare: resizes is False, .* Pause"),
        (ReservesUndeclared, "only what its needs declare: plans_gangs is False, .* Reserve"),
        (SharesUndeclared, "a start allocates what demand\\(\\) answers: .*compute_milli=500"),
        (DemandsUndeclared, "allocation is exclusive, and demand\\(\\) answered Demand"),
        (ReturnsWords, "decide returns actions, not something of type str: 'start all'"),
        (ReturnsNothing, "decide returns a list of actions, not something of type NoneType"),
    ],
)
def test_a_broken_policy_fails_with_the_law_and_a_counter_example(policy, law):
    with pytest.raises(BrokenPolicyError, match=f"{policy.__name__} breaks a law: .*{law}") as it:
        check_policy(policy, examples=30)
    assert not getattr(it.value, "__notes__", [])
    assert "counter-example:\n  cluster: n0 " in str(it.value)
    assert "'0' at 0 s, runs " in str(it.value)


def test_without_hypothesis_one_line_names_the_package_to_install():
    words = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from presage.testing import check_policy\n"
        "check_policy('fifo')"
    )
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=60, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last == (
        "ModuleNotFoundError: check_policy needs the package 'hypothesis'; "
        "pip install 'presage[testing]'"
    )
