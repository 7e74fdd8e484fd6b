"""Text of the page that benchmarks/gang writes."""

from __future__ import annotations

INTRODUCTION = """\
# Gang scheduling by interference and communication

This benchmark compares the optimisers of the `gang` policy, measures the time of a decision, and
compares schedules with those of other policies. Written by `python -m benchmarks.gang GAVEL LUCID`;
the arguments are folders that `presage import gavel` and `presage import lucid` wrote. Machine:
{cores} cores of {machine}, shared with other programs (load average {load:.1f} at the end);
Python {python}, NumPy {numpy}. Times are CPU times unless stated otherwise.

## Summary

- `tree` finds the optimal plan for gangs of identical members, which every job of these traces has.
  It takes 15 to 25 ms for 8 to 256 of 1,024 devices with `reduce=mean`, and 190 ms with
  `reduce=max`. After five million steps, annealing is 2 to 22 % above the optimum.
- A decision for a gang of 64 on 1,024 busy devices takes 25 to 95 ms with the release in process,
  and 26 to 53 ms with a prediction service. It takes 290 ms if all 1,024 running jobs are distinct
  and the service is asked about all of them at once. The target is 300 ms.
- Where gangs lose much speed on several nodes (Gavel's V100), the average JCT of `gang` under load
  is 47 to 75 % of `best-fit`'s. With `near=cluster` it is 66 to 87 %, and one job in a hundred
  holds its devices five times as long as in a solo run. At a load of 0.7 on `ITP 2`, `gang` is no
  better than `best-fit` (102 ± 59 %), because of the reservations of large gangs.
- The limit of slowdown (`most_slowdown`) matters more than the weights. With `near=node`, alpha and
  beta change the average JCT by less than it varies between seeds. With `near=cluster`, beta halves
  the traffic over racks and higher levels, and shortens jobs.
- Under `gang`, the wait of a large gang does not depend on how long small jobs keep arriving
  (11 hours in a test). Under `best-fit` and `packing` it lasts until they stop. On the traces,
  where queues empty by themselves, reservations shorten the longest wait by a sixth if gangs take
  half of the cluster, and not otherwise. They cost 5 to 12 points of JCT there, most of it in one
  of five seeds.
- The benefit of sharing depends on the forecasts. On Lucid's jobs, which are not in its training
  data, the shipped release is as good as the ground truth; on Gavel's V100 it gains nothing.

## Plans of small gangs
"""

SMALL_PLANS = """\
30 random gangs of 4 on 8 free devices of two nodes, with `alpha = beta = 1`, identical or different
members, and `reduce=mean` or `reduce=max`. The figures are the average cost above the best of all
plans (by enumeration) in per cent, and in brackets the number of gangs for which the optimiser
found that plan. `tree` requires identical members.
"""

LARGE_PLANS = """\
Frog leaping with the published defaults has as many frogs as members, and four frogs find little.
`greedy` and `swaps` stay near their first device. `subtrees` and `frog-leaping` start below every
vertex of the tree.

## Plans of large gangs

The cluster has 1,024 devices in 128 nodes (two sockets with two NVLink pairs each), eight racks and
two spines. 60 % of the free devices have a job already; slowdowns are drawn from Beta(1, 3). The
table gives the costs of the plans with `alpha = beta = 1`. The bound is the cost if each device had
the member that causes the least slowdown there, so no plan costs less. For identical members it is
the optimum, and `tree` finds it. Annealing moves one member or swaps two, with Metropolis
acceptance; a run with ten times the steps shows whether it has converged.
"""

DECISIONS = """\
On 64 of 600 devices annealing has converged. Elsewhere ten times the steps still improve it, by
17 % for 8 of 1,024: moving single members does not take a gang out of a local optimum, while
`tree` compares all places. The searches are needed only for different members. There
`frog-leaping` is the best, 0 to 18 % above the bound: it ends with descents from its best frog and
from the greedy plan, so it is never worse than either. Frog leaping as published costs two to seven
times the bound.

## One decision, forecasts included

A gang of {members} arrives at {devices} devices, each of which has one job and free capacity for
another. The policy asks the shipped release for the slowdown of all jobs on each device, and
plans. The jobs are Lucid's (50 on an RTX 3090), or each of the {devices} has distinct features.
*afresh*: no forecast is cached, not even for running jobs, as after a restart of the scheduler.
*new*: a gang of a model that the policy has no forecasts for. *again*: another gang of that model.
{gangs} models, three times each. The columns are medians of wall time, of the CPU time of this
process, and of the CPU time of `presage serve` (in steps of 10 ms). The target is {bar:g} ms.
"""

IN_SIMULATOR = """\
By gRPC with {devices} distinct jobs, most of the time is spent on writing the jobs' features into
the request (about two thirds of this process's time, by cProfile) and on parsing it. Forecasts are
cached for later decisions. The times depend on other load: in other runs these two cases took up to
360 ms. `gang` asks about all devices; a limit like `packing`'s (at most 256 sets of co-located
jobs) would be faster.

## In the simulator

The ground truth is measured. **Gavel**: step times of 26 jobs on a V100, solo, in pairs, and on up
to eight devices of one node and of several. **Lucid**: 44 jobs on an RTX 3090, solo and in pairs.
**Our own** campaign `data/profiles/cpu-2`: 165 jobs solo and 144 of their 13,695 pairs, where a
"device" is two cores of an AMD EPYC; it shows interference on a CPU, not on GPUs. For pairs that
were not measured, the rule is that jobs take turns if together they need a device for more than all
of its time. The rule covers a fifth of Gavel's pairs, half of Lucid's, and nearly all of ours. It
is optimistic for our own campaign: the median slowdown is 2.5 for measured pairs and 1.6 by the
rule.

Gavel measured neither memory nor utilization. For its 26 jobs they are the median predictions of
the shipped release, whose training data for these two quantities are from CPUs only; treat them as
assumptions. Only Gavel measured the slowdown of gangs on several nodes (median 2.4, maximum 9.6 on
a V100); elsewhere it is 1. The effect of NVLink or of a rack's switch on a gang's speed was not
measured: bytes over a level are a cost to the cluster here, and do not change run times.

The traces are the first 800 jobs of two clusters, from a random time on; earlier jobs are appended
at the end. `vc_0e4a51` runs on 8 nodes of 8 devices (gangs of up to 8) and `ITP 2` on 16 nodes
(gangs of up to 64). Nodes have two sockets with two NVLink pairs each; there are four racks and two
spines. Load is requested devices over existing devices: at 1.1 queues grow as long as jobs arrive.
Each job's model is drawn at random, and a restart costs 62 s.

- `fifo` starts jobs in order, each gang on as few nodes as possible. `best-fit` does the same and
  skips jobs that do not fit. Neither shares devices.
- `bin-packing` shares by requests: the measured need of each job, rounded up to quarters of a
  device.
- `packing` and `gang` share by forecasts and allocate compute twice over. Except in the last
  section, forecasts are exact (`oracle`). `packing` orders jobs by predicted run time and gives
  gangs exclusive devices; all other policies order by arrival.

Figures are means over {seeds} seeds; ± gives half of the 95 % confidence interval (Student's t).
"% of best-fit" is the ratio of average JCTs per seed; seeds differ more than policies do.
"slowdown" is the time that a job held its devices over its solo run time on one node. "reserved"
is the share of all device time that reservations kept idle. Devices count as in use until the last
job ends, which on `ITP 2` is long after the last arrival. Bytes are those of all gangs, by the
level that connects adjacent ranks of the ring. For the largest gangs of the trace, the last columns
give the longest and the mean wait, how many later jobs overtook a gang (mean and maximum), and the
most rollbacks of any gang.
"""

STREAMED = """\
## Does a large gang starve?

Jobs of one device and one hour on average (exponential durations, Poisson arrivals) keep 80 % of 64
devices busy for the given number of days. After six hours a gang arrives that needs all 64. The
table gives its wait in hours, and in brackets the number of later jobs that started earlier.
"""

SWEPT = """\
Under `best-fit`, under `packing` and without reservations, the gang waits until no jobs arrive any
more. Under `gang` it waits for 11 hours in any case: each reservation is twice as long as the
previous one, and the gang starts as soon as one outlasts the running jobs. For the gang at the head
of the queue and jobs of at most L seconds, this takes log2(L / `expiry_s`) rollbacks: here five,
for jobs of up to 7 and 12 hours. In the traces above, where jobs run for up to 20 days and gangs
block each other, it would be 12; no gang had more than 10, averaged over the seeds. The wait is
longer than under `backfill` and `fifo`, which hold free devices from the beginning, because a gang
releases all of its devices when a reservation expires.

## Weights

Gavel's V100, `ITP 2`, load 1.1. `near=node` keeps a gang on one node if a node can hold it;
`near=cluster` takes any free devices at once.

![JCT against bytes over racks and higher levels, for a sweep of alpha : beta]({picture})
"""

OPTIMISED = """\
With `near=cluster` the weights have the intended effect: from interference only to topology only,
traffic over racks and higher levels falls from 21 to 12 PB, and jobs end sooner, because gangs are
faster on one node. With `near=node` only gangs of more than eight are spread, and the weights
matter little: `beta` saves a fifth of that traffic, and differences in JCT are within the
confidence interval.

## Optimisers

The same setting with `near=cluster`, where gangs have the most devices to choose from. CPU seconds
are those of the whole simulation.
"""

FORECASTED = """\
With `greedy` and `as-published`, traffic over racks and higher levels is two to three times as
high, and jobs take 12 and 17 % longer. `frog-leaping` finds more expensive plans than `tree`, but
its schedule is no worse: the cost of a plan does not determine JCT, and one different start changes
the rest of a schedule of a few hundred gangs.

## Forecasts

- `oracle`: the ground truth.
- `table`: the measurements. There is no forecast for pairs that were not measured, so these jobs
  are not co-located.
- `shipped`: the shipped release. Its training data contain Gavel's measurements and our own, but
  not Lucid's.
- `none`: every job has exclusive devices, placed by topology only.

Gavel's and Lucid's jobs run on `ITP 2` and our own on `vc_0e4a51`, all at load 1.1.
"""

LAST = """\
On Lucid's jobs the shipped release is as good as the ground truth (72 and 70 % of `best-fit`'s
JCT), although they are not in its training data. On Gavel's V100 it gains nothing:
co-located jobs slow each other by more than it predicts (1.30 on average, 1.16 with the oracle),
although it was trained on these measurements. A table of measurements is as good as the ground
truth there.

Without forecasts `gang` shares nothing. On `ITP 2` it then takes 8 and 11 % longer than `best-fit`,
which is within the confidence intervals and about the cost of reservations; on `vc_0e4a51`, with
its small gangs, it takes 8 % less.

In our own campaign `table` covers 1 % of all pairs, and most of these slow each other by more than
1.5. With measurements alone, sharing gains nothing there (96 %, and 92 % without), and the gain of
`packing` comes from serving short jobs first. No job ran out of memory, because memory bounds were
kept in all of these runs.
"""

_TITLES = {
    "gavel": "Gavel's V100",
    "lucid": "Lucid's RTX 3090",
    "own": "Our own campaign, two cores",
}

_WORDS = {
    ("gavel", "vc_0e4a51", 0.7): """\
Sharing by forecasts halves `best-fit`'s JCT for every order of the queue, and no job is slowed by
more than 1.5. Sharing by requests takes longer than not sharing: Gavel's pairs on a V100 slow each
other by 1.9 in the median, which requests do not express, and gangs are spread over nodes. Gangs
that start on any devices (`near=cluster`) take 1.45 times as long on average. Leaving out one of
the two terms changes JCT by less than the confidence interval: devices where a job would be slowed
by more than 1.5 are excluded anyway, and the remaining choice is small.
""",
    ("gavel", "vc_0e4a51", 1.1): """\
The same effects are larger. `packing` has the lowest average because it serves short jobs first,
at the cost of its 99th percentile, which is above `best-fit`'s. `gang` serves by arrival, and
its 99th percentile is lower than that of the other policies. The longest wait of a gang of eight is
506 h on average over the seeds, 803 h under `best-fit`, and 408 h under `fifo`, where no job
overtakes it. Without reservations it is 485 h: sharing shortens the wait here. Gangs of at most
eight find a node before their reservations expire.
""",
    ("gavel", "ITP 2", 0.7): """\
`gang` is no better than `best-fit`, and takes 1.8 times as long in one of five seeds (17.7 h over
9.8 h). Gangs of 64 reserve half of the cluster, each time for twice as long and finally for days,
because jobs run for days here, and then release it; all other jobs wait meanwhile. Without
reservations the JCT is 90 ± 32 % of `best-fit`'s, and 11.7 h in that seed. Reservations would cost
less if jobs that are predicted to end in time could run on reserved devices, as under `backfill`.
""",
    ("gavel", "ITP 2", 1.1): """\
With longer queues, sharing gains more than reservations cost. Without reservations the JCT is
70 ± 10 % of `best-fit`'s instead of 75 %. More bytes cross racks than under `best-fit`, because
gangs of 16 and more do not wait for whole nodes.
""",
    ("lucid", "ITP 2", 1.1): """\
Lucid's pairs on an RTX 3090 slow each other by 1.16 in the median: almost all jobs can be
co-located, and correct requests are as good as forecasts. Interference still matters: without it
(`alpha=0`) jobs are slowed by 16 % instead of 6 %. In this ground truth, topology does not affect
speed, and `near=node` costs nothing either.
""",
    ("own", "vc_0e4a51", 1.1): """\
Two jobs on two cores take turns. The gain here comes mostly from the rule for pairs that were not
measured, less from measurements: compare `table` below, which co-locates measured pairs only.
""",
}


def of_setting(world: str, trace: str, load: float) -> tuple[str, str]:
    """Return title and introduction of a setting."""
    return f"{_TITLES[world]}, {trace}, load {load:g}", _WORDS[world, trace, load]
