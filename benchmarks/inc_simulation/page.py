"""Page of results of the phase simulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from benchmarks.inc_simulation import experiments
from benchmarks.inc_simulation.experiments import Score, average
from presage.collectives.arbiter.arbiter_options import ArbiterOptions
from presage.collectives.arbiter.planner import ADOPTION_CALLS
from presage.collectives.simulation.simulate import WARM_UP

Results: TypeAlias = dict[tuple[Any, ...], Any]
STARTED = range(2000, 2008)
VOTE_S = 1e-3
TITLES = {
    "ring": "ring only",
    "tree": "tree only",
    "first-for-life": "first for life",
    "first-come": "first come",
    "time-saved": "time saved (the arbiter)",
    "own-switch": "bound: a slot for each job",
    "ceiling": "bound: ceiling of one slot",
}


def _tuned(found: Results, jitter: float, name: str) -> Score:
    seeds = experiments.TUNING
    return average([Score(*found["tune", seed, jitter, name]) for seed in seeds])


def page(found: Results) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _introduction()
    yield from _rules(found)
    yield from _verdict(found)
    yield from _options(found)
    yield from _placement(found)
    yield from _starts(found)
    yield from _limits(found)


def _introduction() -> Iterator[str]:
    options = ArbiterOptions()
    planner = options.planner
    yield from f"""\
# Sharing a switch in time, simulated

This benchmark measures the speed of four training jobs that share one
[switch](../jobs/inc_switch.md) with one slot, under several rules. Written by `python -m
benchmarks.inc_simulation`.

Speed is iterations per second over those with the faster of ring and tree for each AllReduce.
"Worst" is the slowest job of a set. AllReduce costs are those of requirement I9. A job runs
one AllReduce at a time, when its gradients are ready. Computation of an iteration varies by a
log-normal factor, the jitter. A refused AllReduce costs three latencies and then runs by ring or
tree.

The rule "time saved" is the code that runs in the arbiter: `PhaseEstimator` learns the rhythm of
each job from its AllReduces, `plan` makes views, and `decision_tables` decides. Its options are the
defaults of `presage inc arbiter`: decisions for {planner.horizon_s:g} s, changed at most every
{options.plan_s:g} s, by the most likely arrivals. [Others](#windows-and-planning) are compared
below.""".splitlines()


def _rules(found: Results) -> Iterator[str]:
    yield ""
    yield "## Which rule is best?"
    for jitter in experiments.JITTERS:
        reports = [found["report", seed, jitter] for seed in experiments.REPORTED]
        yield ""
        yield f"{len(reports)} sets, jitter {jitter:.0%}:"
        yield ""
        yield "| rule | mean speed | worst job, mean of sets | worst job of all | refused |"
        yield "|---|---:|---:|---:|---:|"
        for rule, title in TITLES.items():
            scores = [Score(*one[rule]) for one in reports]
            mean = average(scores)
            lowest = min(score.worst for score in scores)
            is_bound = rule == "ceiling"
            worst = "" if is_bound else f"{mean.worst:.3f}"
            yield (
                f"| {title} | {mean.mean:.3f} | {worst} | "
                f"{'' if is_bound else f'{lowest:.3f}'} | {mean.refused:,.0f} |"
            )
    yield from """\

The ceiling of one slot is the optimum of a linear program: an AllReduce on the switch saves at most
the difference of its costs, the slot is occupied at most all of the time, and nothing collides. It
holds for the mean, not for a job. Refused AllReduces are per set.""".splitlines()


def _verdict(found: Results) -> Iterator[str]:
    parts = []
    for jitter in experiments.JITTERS:
        reports = [found["report", seed, jitter] for seed in experiments.REPORTED]
        pairs = [(Score(*one["time-saved"]), Score(*one["first-come"])) for one in reports]
        mean = sum(a.mean - b.mean for a, b in pairs) / len(pairs)
        worst = sum(a.worst - b.worst for a, b in pairs) / len(pairs)
        wins = sum(a.mean > b.mean for a, b in pairs)
        parts.append(
            f"- jitter {jitter:.0%}: {mean:+.3f} for the mean, {worst:+.3f} for the worst job; "
            f"better in {wins} of {len(pairs)} sets."
        )
    beats = all("+" in part.split(" for the mean")[0] for part in parts)
    yield ""
    yield "**Time saved against first come:**"
    yield ""
    yield from parts
    yield ""
    yield (
        "The score beats first come in the mean at every jitter."
        if beats
        else "The score does not beat first come. By I3 the switch can be idle, for an AllReduce\n"
        "that is predicted to save more; under first come it never is while one arrives."
    )


def _options(found: Results) -> Iterator[str]:
    yield from """\

## Windows and planning

Mean speed and worst job on sets of their own, by the time that a view lasts for (the horizon), the
least time between two views, and the factor on the estimator's margin. A wide margin makes more
arrivals count as during the run, so the switch is idle more often.
""".splitlines()
    yield ""
    jitters = experiments.JITTERS
    yield "| options | " + " | ".join(f"jitter {j:.0%}" for j in jitters) + " |"
    yield "|---|" + "---:|" * len(jitters)
    for name in experiments.OPTIONS:
        cells = [_tuned(found, jitter, name) for jitter in jitters]
        is_default = experiments.OPTIONS[name] == ArbiterOptions()
        shown = f"{name} (defaults)" if is_default else name
        yield f"| {shown} | " + " | ".join(f"{c.mean:.3f} / {c.worst:.3f}" for c in cells) + " |"
    cells = [
        average([Score(*found["tune_first_come", s, jitter]) for s in experiments.TUNING])
        for jitter in jitters
    ]
    yield "| first come | " + " | ".join(f"{c.mean:.3f} / {c.worst:.3f}" for c in cells) + " |"


def _placement(found: Results) -> Iterator[str]:
    yield from f"""\

## Does it matter which jobs share a switch?

Eight jobs on two switches, four on each, {len(experiments.PLACED)} sets, jitter 3%. "Random" is the
mean of three placements. "Least load" has the smallest largest demand of a switch, "largest gain"
the largest sum of the ceilings; both need only the predicted iteration and its AllReduces. "Best of
all" simulates all 35 placements and takes the best, which no scheduler can do.

| placement | first come: mean | worst | time saved: mean | worst |
|---|---:|---:|---:|---:|""".splitlines()
    for how in experiments.PLACEMENTS:
        cells = []
        for rule in ("first-come", "time-saved"):
            keys = [("place", seed, how, rule) for seed in experiments.PLACED]
            if any(key not in found for key in keys):
                cells += ["", ""]
                continue
            mean = average([Score(*found[key]) for key in keys])
            cells += [f"{mean.mean:.3f}", f"{mean.worst:.3f}"]
        yield f"| {how} | " + " | ".join(cells) + " |"
    changes = []
    for rule in ("first-come", "time-saved"):
        if any(("place", seed, "random", rule) not in found for seed in experiments.PLACED):
            continue
        random, gain = (
            average([Score(*found["place", seed, how, rule]) for seed in experiments.PLACED])
            for how in ("random", "largest gain")
        )
        changes.append(f"{gain.mean - random.mean:+.3f} under {rule}")
    yield ""
    yield "Placement by the largest gain changes the mean speed:"
    yield f"{' and '.join(changes)}."


def _starts(found: Results) -> Iterator[str]:
    yield from """\

## Do phase offsets help?

Four equal jobs, which start together, at random, or a quarter of an iteration apart. Nothing is
delayed later. Mean speed:

| rule | jitter | together | random | staggered |
|---|---:|---:|---:|---:|""".splitlines()
    differences = []
    for rule in ("first-come", "time-saved"):
        for jitter in experiments.JITTERS:
            means = [
                average([Score(*found["start", s, how, rule, jitter]) for s in STARTED]).mean
                for how in experiments.STARTS
            ]
            yield f"| {rule} | {jitter:.0%} | " + " | ".join(f"{m:.3f}" for m in means) + " |"
            differences.append(means[-1] - means[1])
    yield ""
    yield (
        f"Staggered starts change the mean speed by {min(differences):+.3f} to "
        f"{max(differences):+.3f} against random ones."
    )


def _limits(found: Results) -> Iterator[str]:
    counted_s = 4 * (1 - WARM_UP) * experiments.DURATION_S  # of four jobs
    costs = [
        average([Score(*found["report", seed, 0.0][rule]) for seed in experiments.REPORTED]).refused
        * VOTE_S
        / counted_s
        for rule in ("first-come", "time-saved")
    ]
    yield from f"""\

## How do I predict live jobs?

Measure each job without contention, with the times at which its AllReduces were queued, started and
complete. `predict_jobs` returns the iteration time of each job under each rule:

```python
from presage.collectives.core.costs import Link
from presage.collectives.simulation.live_jobs import MeasuredCall, MeasuredJob, predict_jobs

iterations = [[MeasuredCall(queued_s, start_s, end_s, size_bytes), ...], ...]
jobs = [MeasuredJob("a", 4, ("s",), iterations), ...]
found = predict_jobs(jobs, {{"s": 1}}, Link(latency_s=1e-4, bandwidth_bytes_per_s=6.25e6))
found["first-come"]["a"].iteration_s
```

## Limits

- Jobs are drawn: 4 to 32 ranks, 100 ms to 1 s of computation, 1 to 8 AllReduces, a ring of 0.1 to
  1.2 times the computation; about half of them overlap it with the backward pass.
  Of {experiments.DURATION_S:g} s that are simulated, the first {WARM_UP * experiments.DURATION_S:g}
  are not counted.
- Each job has its links for itself; only slots are shared.
- A view takes effect when each job has started {ADOPTION_CALLS} AllReduces since it was made.
  Votes and messages cost latencies only. With the refusals above at jitter 0%, a vote of
  {1000 * VOTE_S:g} ms would take
  {costs[0]:.3f} from the mean of first come, and {costs[1]:.3f} from that of time saved.
- Costs are compared with [measured AllReduces](inc_switch.md) by a test.""".splitlines()
