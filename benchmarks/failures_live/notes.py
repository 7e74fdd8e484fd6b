"""Findings about a run of benchmarks/failures_live, for its page."""

NOTES = """\
## Why do live and simulated runs differ?

No job was lost, and each lost attempt has a failure of its node as its cause. In seed 3 the
mean JCT is within 2.3 % under each policy. The larger differences have these causes:

- **Another node.** The policies choose among nodes that are free at the same moment and have nearly
  equal rates. Ends of jobs and returns of agents vary by a second and more, so that jobs swap
  nodes. If one of the nodes fails later, another job is lost. In seed 1 this is one job, which was
  lost twice live, and started on a healthy node in the simulator: 132 s against 57 s.
- **The view of the policy.** A live policy sees only the devices of nodes that are up, a simulated
  one all devices. How much the rates differ between devices is estimated from the devices that the
  policy sees.
- **The machine.** It ran other work at the same time, with a load average of 14 to 31 on two cores.
  Agents needed 3 s to join in seed 1, and 13 s in seed 2, with a wide spread. The simulator has one
  time for all.
- **False losses.** Twice a node was recorded as lost just after it had joined again: the
  controller looked for lost nodes after it had recorded the return, and before it had noted the
  time of the report. The node joined again within 0.2 s. Each is one more outage in the history.
- **Unreported ends.** In seed 2 a job did its last step 0.1 to 0.7 s after the kill of its agent,
  and before that of its own process, under two policies. No report said so, and it ran again.

## What do these figures not show?

- Three draws of 17 jobs do not rank the policies; the simulated seeds above do, within their
  intervals.
- With jobs of a minute and failures within minutes, 15 s of detection are much of a restart.
  With jobs of hours and a lease of two minutes they are not.
- `learnt` was not run: a live policy sees fewer devices while nodes are down, and releases for a
  single size of cluster then decide as `expected`.
"""
