"""The words of the page that benchmarks/gang writes."""

from __future__ import annotations

INTRODUCTION = """\
# Gang scheduling by interference and communication

By `python -m benchmarks.gang GAVEL LUCID`, folders that `presage import gavel` and `presage
import lucid` wrote. {cores} cores of {machine}, which others use as well (load average {load:.1f}
at the end); Python {python}, NumPy {numpy}. Times are of the processor unless they say otherwise.

## In short

- The tree's optimum is exact for members that are alike, as those of every job are, in 10 to 20
  ms for 8 to 256 of 1,024 devices where the mean counts (130 ms where the worst does); annealing
  is 2 to 22 % above it after five million steps.
- A decision on a gang of 64 on 1,024 devices, each with a job already, takes 20 to 80 ms with
  the release in this process, and 20 to 40 ms with a service; 230 ms where each of the 1,024 jobs
  that run is unlike the others, and the service is asked of all of them at once. The bar is 300.
- Where gangs lose much by being spread (Gavel's V100), `gang` takes 47 to 75 % of `best-fit`'s
  average JCT under load; without `near=node` it was 66 to 87 %, and one job in a hundred held its
  devices for five times as long as alone. At a load of 0.7 on `ITP 2` it is no better than
  `best-fit` (102 ± 59 %), because of what large gangs reserve.
- Who may go beside whom at all (`most_slowdown`) matters more than how the two terms are weighed:
  on one node alpha and beta move average JCT by less than it varies from seed to seed. Where
  gangs go anywhere, beta halves what goes over racks and further, and shortens jobs with it.
- A gang waits no longer the longer small jobs keep coming (11 hours in a test); under `best-fit`
  and `packing` it waits until they stop. On the traces, where queues empty by themselves,
  reservations shorten the longest wait by a sixth where gangs are of half the cluster, and
  otherwise not; there they cost 5 to 12 points of JCT, most of it in one of five seeds.
- Sharing stands and falls with its forecasts: on Lucid's jobs, which it never saw, the release
  that ships earns as much as the truth; on Gavel's V100 nothing.

## Plans of small gangs
"""

SMALL_PLANS = """\
30 drawn gangs of 4 on 8 free devices of two nodes, `alpha = beta = 1`; members alike or not, the
mean of them or the worst. How much more than the best of all plans (enumerated) a plan costs, in
per cent on average, and in brackets how often it was that plan. `tree` needs members that are
alike.
"""

LARGE_PLANS = """\
Frog leaping with the published defaults has as many frogs as members, and four frogs find little.
Greedy, and a descent by swaps from there, stay near the device that they begin with; `subtrees`
and `frog-leaping` begin below every vertex of the tree.

## Plans of large gangs

Free devices of 1,024 in 128 nodes (two sockets with two pairs of NVLink each), eight racks and
two spines; somebody is on 60 % of them, and degradations are drawn (Beta(1, 3)). Costs of the
plans, `alpha = beta = 1`. No plan costs less than the bound: the optimum if each device did the
harm of whichever member does least there; where members are alike, that is the optimum itself,
and `tree` finds it. Annealing moves one member, or lets two change places, and accepts by
Metropolis; it was run with ten times the steps to see whether it still improves.
"""

DECISIONS = """\
On 64 of 600 annealing has stopped; elsewhere ten times the steps still better it, by 17 % for 8
of 1,024. Moving members one by one does not bring a gang that has settled in one place to a
better one; the tree compares all places. The searches are needed only where members are not
alike. There frog leaping is the best, 0 to 18 % above the bound: it ends with descents from its
best frog and from the greedy plan, and is never worse than either. Frog leaping as published is
two to seven times above the bound.

## One decision, forecasts included

A gang of {members} comes to {devices} devices of which each has a job already and room for
another one; the policy asks the release that ships how slow everybody would become, device by
device, and plans. Jobs are those of Lucid's tables (50 on an RTX 3090), on each device one of
them, or each of the {devices} with features of its own. *Afresh*: nothing is known, not even of
the jobs that run (a scheduler that has just been started). *New*: a gang of a model of which
nobody asked before. *Again*: another gang of that model. {gangs} models, three times; medians on
the clock, of this process's processor, and of that of `presage serve` (in steps of 10 ms). The
bar is {bar:g} ms.
"""

IN_SIMULATOR = """\
By gRPC, with {devices} jobs that are all unlike each other, most of the time goes into writing
their statistics into a request (about two thirds of this process's, by cProfile) and reading them
from it: what is asked again is remembered. These times depend on who else uses the machine: in
other runs these two took up to 360 ms. Asking of fewer devices at once, as `packing` does (256
companies of jobs at most), would bring them down; `gang` asks of all.

## In the simulator

Worlds are measured. **Gavel**: step times of 26 jobs on a V100 alone, in pairs, and on up to
eight devices of one node and of several. **Lucid**: 44 jobs on an RTX 3090 alone and in pairs.
**Our own** campaign `data/profiles/cpu-2`: 165 jobs alone and 144 of their 13,695 pairs, where a
"device" is two cores of an AMD EPYC. It says what two jobs do to each other on a processor, and
nothing of GPUs. Of who was not measured together, the rule is that they take turns, if both keep
a device busy for longer than there is time: so it is of a fifth of Gavel's pairs, of half of
Lucid's, and of nearly all of ours. That makes our own world kinder than it was measured: pairs
that were measured slow each other by 2.5 in the median, those of the rule by 1.6.

Gavel measured neither memory nor utilization: for these 26 jobs they are what the release that
ships foretells in the median. It learnt these two on processors alone, so that they are
assumptions, and no measurements. What a gang on several nodes loses Gavel alone measured (2.4
times as long in the median on V100, 9.6 at most); in the other two worlds it loses nothing. What
NVLink or a rack's switch does to a gang's speed was not measured at all: bytes over a level are a
cost to the cluster here, and no time of the job's.

The first 800 jobs of two traces, from a moment that the seed draws on (what was before comes
after the end): `vc_0e4a51` on 8 nodes of 8 devices (gangs up to 8) and `ITP 2` on 16 nodes (up to
64). Nodes have two sockets with two pairs of NVLink each; there are four racks and two spines.
Load is devices asked for over devices there: at 1.1 queues grow as long as jobs come. A job's
model is drawn, and to start again costs it 62 s. `fifo` (in order, each gang on as few nodes as
can be) and `best-fit` (the same, but who does not fit is passed over) share nothing.
`bin-packing` shares by what users request: what each job was measured to need, rounded up to
quarters of a device. `packing` and `gang` share by forecasts, with compute granted twice over;
these come true (`oracle`) but for the last section. `packing` serves who is foretold to be over
soonest and gives gangs whole devices; all others serve by arrival.

Means over {seeds} seeds, with half of the 95 % confidence interval (Student's t) behind ±. "Of
best-fit's" is the ratio of average JCTs, seed by seed; seeds differ more from each other than
policies do. Slowdown is how much longer a job held its devices than it takes alone on one node.
"Kept idle" is the part of all devices' time that reservations kept; devices are in use until the
last job ends, which on `ITP 2` is long after the last one came. Bytes are of all gangs together,
by the level at which neighbours of the ring meet. Of the largest gangs of the trace: the longest
wait, the mean one, how many jobs that came later started earlier, on average and at most, and the
most rollbacks that any gang had.
"""

STREAMED = """\
## Does a large gang starve?

64 devices, 80 % of which jobs of one device and of an hour on average keep busy (exponential
durations, Poisson arrivals), for so many days; after six hours comes a gang that needs all 64.
How many hours it waits, and in brackets how many jobs that came later started earlier.
"""

SWEPT = """\
Under `best-fit` and `packing`, and where nothing is kept, the gang waits until the others stop
coming. Under `gang` it waits for 11 hours however long they do: each reservation is twice as long
as the last, and as soon as one is longer than whoever is there still runs, the gang starts. With
jobs of at most L seconds and nobody before it in the queue that takes log2(L / `expiry_s`)
rollbacks: here five, of jobs up to 7 and 12 hours. In the traces above, where jobs run for up to
20 days and gangs stand in each other's way, it would be 12, and no gang had more than 10 on
average over the seeds. It is dearer than `backfill` and `fifo`, which keep what is free from the
beginning, because a gang that failed gives all of it back.

## Weights

Gavel's V100, `ITP 2`, load 1.1. `near=node` keeps a gang on one node if one can hold it;
`near=cluster` takes what there is at once.

![JCT against bytes over racks and further, as alpha : beta is swept]({picture})
"""

OPTIMISED = """\
With `near=cluster` the weights do what they are for: from interference alone to topology alone,
what goes over racks and further falls from 21 to 12 PB, and jobs are over sooner, as a gang on
one node is faster. With `near=node` only gangs of more than eight are spread, and weights matter
little: `beta` still saves a fifth of the dear bytes, and nothing of JCT is beyond its interval.

## Optimisers

The same setting with `near=cluster`, where gangs have most devices to choose from. CPU seconds
are of the whole simulation.
"""

FORECASTED = """\
Greedy plans, and those of frog leaping as published, send two to three times as much over racks
and further, and jobs take 12 and 17 % longer. Frog leaping as shipped finds dearer plans than the
tree, and yet its schedule is no worse: what a plan costs is not what it does to JCT, and a
schedule of a few hundred gangs that starts differently once goes on differently.

## Forecasts

`table`: what was measured is foretold, and of who was not measured together nothing, so that they
are not put together; `shipped`: the release that ships, which learnt from Gavel's measurements
and from our own, and never saw Lucid's; `none`: every job has whole devices, and is put where its
gang is near. Gavel's and Lucid's world are those of `ITP 2`, our own is that of `vc_0e4a51`, all
at load 1.1.
"""

LAST = """\
On Lucid's jobs the release that ships earns what the truth does (72 and 70 % of `best-fit`'s
JCT), though it never saw them. On Gavel's V100 it earns nothing: it puts jobs together that slow
each other by more than it foretells (1.30 on average and not 1.16, though it learnt from these
measurements); there a table of what was measured is worth as much as the truth. `gang` without
forecasts shares nothing, and takes 8 and 11 % longer than `best-fit` on `ITP 2`, within the
intervals: about what keeping devices for gangs costs. On `vc_0e4a51`, whose gangs are small, it
takes 8 % less. In our own world a table puts only those together that were measured together, 1 %
of all pairs, most of which slow each other by more than 1.5: by measurements alone, sharing earns
nothing there (96 %, and 92 % without), and `packing`'s gain is that of serving short jobs first.
Nobody ran out of memory, as bounds of memory were kept in all of these.
"""

_TITLES = {
    "gavel": "Gavel's V100",
    "lucid": "Lucid's RTX 3090",
    "own": "Our own campaign, two cores",
}

_WORDS = {
    ("gavel", "vc_0e4a51", 0.7): """\
Sharing by forecasts takes half of `best-fit`'s JCT, in whatever order; nobody is slowed more than
1.5 times. Sharing by requests takes longer than not sharing: on a V100 Gavel's pairs slow each
other by 1.9 in the median, and what jobs request says nothing of it; and gangs are spread over
nodes. Going anywhere at once costs gangs 1.45 times their time on average. That either term is
left out is within the interval: who would be slowed more than 1.5 times is no candidate in any
case, and what is left to choose from is little.
""",
    ("gavel", "vc_0e4a51", 1.1): """\
The same, more so. `packing` is ahead because it serves short jobs first, at the price of its 99th
percentile, which is `best-fit`'s; `gang` serves by arrival, and has the shortest one. The longest
wait of a gang of eight is 506 h on average over the seeds, 803 under `best-fit`, and 408 under
`fifo`, where nobody passes them; without reservations it is 485: here it is sharing that shortens
their wait. Gangs of at most eight find a node sooner than they are let down.
""",
    ("gavel", "ITP 2", 0.7): """\
No better than `best-fit`, and in one of five seeds 1.8 times as long (17.7 h over 9.8): gangs of
64 reserve half of the cluster, each time for twice as long and at last for days, because jobs run
for days here, and give it back. Everybody else waits for that. Where nothing is kept it is 90 ±
32 %, and 11.7 h in that seed. The bound would be cheaper if jobs that are foretold to end in time
could run on what is reserved, as under `backfill`.
""",
    ("gavel", "ITP 2", 1.1): """\
Where more wait, sharing is worth more than reservations cost. Where nothing is kept it is 70 ± 10
% of `best-fit`'s and not 75. Over racks goes more than under `best-fit`, as gangs of 16 and more
do not wait for whole nodes.
""",
    ("lucid", "ITP 2", 1.1): """\
On an RTX 3090 Lucid's pairs slow each other by 1.16 in the median: almost anybody may go beside
anybody, and requests that are right do as well as forecasts. Interference is worth looking at:
without it (`alpha=0`) jobs are slowed by 16 % and not 6 %. Being near is worth nothing to speed
in this world, and `near=node` costs nothing either.
""",
    ("own", "vc_0e4a51", 1.1): """\
Two jobs on two cores take turns. What is gained here is by the rule of turns, for pairs that
nobody measured, more than by measurements: see `table` below, where only who was measured
together is put together.
""",
}


def of_setting(world: str, trace: str, load: float) -> tuple[str, str]:
    """Return title and introduction of a setting."""
    return f"{_TITLES[world]}, {trace}, load {load:g}", _WORDS[world, trace, load]
