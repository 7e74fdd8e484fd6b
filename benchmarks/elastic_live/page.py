from __future__ import annotations
from typing import Any, NamedTuple
class SeedRun(NamedTuple):
    seed: int
    jobs: Any
    live: Any
    simulated: Any
def page(runs):
    for r in runs:
        yield f"seed {r.seed}"
        first=min(o['submitted_unix_s'] for o in r.live.values())
        for j in r.jobs:
            l,s=r.live[j.job_id],r.simulated[j.job_id]
            lj=l['ended_unix_s']-l['submitted_unix_s']
            yield f"{j.job_id} {j.model} g{j.gpus} {'E' if j.is_elastic else 'F'} live {lj:.1f} sim {s['jct_s']:.1f} {s['jct_s']/lj-1:+.1%} att {l['attempts']} {l['phase']}"
            yield '   live '+' '.join(f"{t-first:.0f}:{n}" for t,n,_ in l['sizes'])
            yield '   sim  '+' '.join(f"{t:.0f}:{n}" for t,n in s['sizes'])
            yield '   gen  '+' '.join(f"{g['unix_s']-first:.0f}:{g['size']}" for g in l['generations'])
