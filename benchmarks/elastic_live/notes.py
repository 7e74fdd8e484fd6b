"""Explanations of the page of benchmarks/elastic_live, which its runs do not change."""

NOTES = """\
- **Start**: 15 s from the start of a worker's process, and the time until a process is started and
  the workers have joined. Other work on the machine slowed the starts
  that took longer than 17 s.
- **Growth**: the job continues at its former size meanwhile. The simulator's default is a stop of
  0.06 s, after which the job has its new speed at once. With `ResizeCosts(startup_s=...)` it loses
  what it would have done on the new devices until the workers join, in place of their whole start.
- **Speeds**: the live policy uses a measured speed after 5 s of training at a size. Until then it
  limits a job to twice its request, and uses forecasts. The simulator's default is to know a speed
  at once, which allowed sizes that the live policy could not choose. With
  `ResizeCosts(measuring_s=6.5)` it waits as long as the controller does.
- For jobs of hours these seconds do not matter, and the defaults suffice.

## Why do two jobs of seed 1 have other sizes?

Jobs 0 and 5 both run on two devices and end within seconds of each other. Live, job 5 was first,
and job 0 grew to four devices for its last seconds. In the simulator it was the other way round.
Neither started more than 3 s earlier or later than in the simulator.

## What did earlier runs show?

They used the same traces, and workers that joined as soon as PyTorch was imported: after 6 to 20 s,
depending on what else the machine ran. Seed 1 had the same sizes for all 8 jobs, and a mean
difference of 1.5 %. Seed 2 had the same sizes for 3 of 8, by these causes:

- **The controller lost the progress of preempted jobs.** The policy saw a waiting job continue at
  its last speed, and one that started again begin at 0 until its workers had read the checkpoint.
  Two preempted jobs replaced each other three times within three seconds. Since then a waiting job
  has the progress of its checkpoint, also while it starts.
- **The simulator knew speeds at once**, as above. A completion time was off by up to 44 %, and by
  5 % at most with `measuring_s`.
- **The start of workers varied.** With the mean of the run, 9.4 s, the simulated policy had not
  measured a size that the live one had. With 5 to 8 s, which that job really took, the simulator
  chose the live sizes of the first jobs, except for the changes by the first cause. Since then
  workers join 15 s after their process began, as with a longer import or a data set to load.

Another run of seed 1 had the same sizes for all 8 jobs and a mean JCT off by 1.1 %. One job was off
by 11.8 %: it completed while workers for its growth were starting. They waited 60 s for a leader
that had ended, on devices that no job used. Now the controller ends workers that have not joined
when their job is complete. That run led to medians in place of means, too: with the mean time to
end, in which this job has 82 s, the simulated JCT was off by 11.3 % and 3 of 8 jobs had the same
sizes. Seeds 2 and 3 have the same sizes either way.

## Limits

- Startup hardly varies here. Where it does, a size can be measured before a decision or after it,
  and sizes can differ.
- The live controller also decides once a second, the simulator only when something happens or the
  policy requests it.
- Device time is emulated, so contention of links, caches and data loading between jobs is missing.
- Workers of both nodes, their leaders and the controller share one machine.
"""
