"""A policy as its author would write it outside of the package, and a trace that it runs."""

PLAIN = """\
from presage.schedulers.core.policy import Policy


class ShortestFitting(Policy):
    \"\"\"Start every job that fits, the shortest first.\"\"\"

    def __init__(self, depth: int = 100) -> None:
        self._depth = depth

    def key(self, job, status, forecasts):
        return (forecasts.runtime_s(job), job.submit_s)

    def decide(self, state, forecasts, rng):
        plan = state.plan()
        for place, job in enumerate(state.pending):
            if place >= self._depth or not plan.idle_count:
                break
            plan.start(job)
        return plan.actions
"""
# The urgent gang fits as devices are counted, but on no single node, while the last job would.
TRACE = """\
job_id,submit,gpus,duration,latency_sensitive
a,0,3,1000,0
b,0,1,10,0
c,0,3,1000,0
d,0,1,10,0
urgent,5,2,10,1
e,5,1,10,0
"""
CLUSTER = "nodes: [{name: n0, devices: 4, kind: v100}, {name: n1, devices: 4, kind: v100}]\n"
