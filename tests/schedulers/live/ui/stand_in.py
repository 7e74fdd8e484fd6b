"""Fake controller that returns given responses, for states that are rare."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import grpc

from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc

GIB = 2**30


class StandIn(pb_grpc.ClusterServiceServicer):
    """Cluster service that returns ``found``, ``events`` and ``log``; a context manager."""

    def __init__(self, found, port=0):
        self.found, self.events, self.log = found, [], b""
        self.explained, self.log_requests = [], 0
        self._server = grpc.server(ThreadPoolExecutor(16))
        pb_grpc.add_ClusterServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.target = f"127.0.0.1:{self.port}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_error):
        self._server.stop(None).wait()

    def List(self, request, context):
        return self.found

    def Explain(self, request, context):
        self.explained.append(request.job_id)
        row = next((row for row in self.found.jobs if row.job.job_id == request.job_id), None)
        if row is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no job {request.job_id!r} is known")
        return explanation(row)

    def WhatIf(self, request, context):
        start = pb.TimeQuantiles(low_s=60, median_s=120, high_s=240)
        waiting = [row.job.job_id for row in self.found.jobs if row.phase == pb.WAITING]
        return pb.WhatIfResponse(
            answers=[
                pb.WhatIfAnswer(job_id=job_id, verdict="predicted", start=start)
                for job_id in waiting
            ]
        )

    def Watch(self, request, context):
        yield from (event for event in self.events if event.entry > request.after_entry)
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait()

    def Logs(self, request, context):
        self.log_requests += 1
        yield pb.LogChunk(content=self.log)


def explanation(row):
    waits = row.phase == pb.WAITING
    candidate = pb.Candidate(
        node="node-00", kind="h100", free_compute_milli=350, free_memory_bytes=9 * GIB,
        required_compute_milli=600, required_memory_bytes=20 * GIB, runtime_s=math.inf,
        verdict="too little free compute",
    )  # fmt: skip
    place = f"; it is no. {row.queue_position} in the queue"
    sentence = f"it waits: no device has enough free capacity for a best-effort job{place}"
    return pb.Explanation(
        status=row,
        summary=sentence if waits else "it runs",
        candidates=[candidate] if waits else [],
    )


def told(kind="h100", *, compute_milli=400, memory_bytes=20 * GIB, runtime_s=3600.0):
    return pb.Prediction(
        kind=kind, compute_milli=compute_milli, memory_bytes=memory_bytes, runtime_s=runtime_s,
        slo_s=1.3 * runtime_s, setup_s=20.0, in_domain=True, is_predicted=True,
    )  # fmt: skip


def running(name, node="node-00", devices=(0,), *, milli=400, memory_bytes=20 * GIB, **fields):
    """Return the status of a job on devices of a node; ``fields`` are fields of the status."""
    job = {"job_id": name, "user": "ada", "gpus": len(devices), "latency_sensitive": True}
    job |= {key: fields.pop(key) for key in ("model", "user", "latency_sensitive") if key in fields}
    status = {
        "phase": pb.RUNNING, "attempt": 1, "started_unix_s": 1e9, "submitted_unix_s": 1e9 - 60,
        "usage_milli": 0.9 * milli, "memory_bytes": 0.6 * memory_bytes,
        "peak_memory_bytes": 0.8 * memory_bytes, "elapsed_s": 1200.0, "remaining_s": 2400.0,
        "done": 0.33, "predictions": [told(compute_milli=milli, memory_bytes=memory_bytes)],
    } | fields  # fmt: skip
    for key in ("memory_bytes", "peak_memory_bytes"):
        status[key] = int(status[key])
    allocations = [
        pb.Allocation(device=d, compute_milli=milli, memory_bytes=memory_bytes) for d in devices
    ]
    return pb.JobStatus(job=pb.Job(**job), node=node, allocations=allocations, **status)


def waiting(name, place, **fields):
    """Return the status of a job in the queue."""
    return pb.JobStatus(
        job=pb.Job(job_id=name, user="bob", gpus=1, **fields), phase=pb.WAITING, waited_s=90.0,
        queue_position=place, submitted_unix_s=1e9 + place,
    )  # fmt: skip


def elastic(name, members, sizes=(), **fields):
    """Return the status of an elastic job of 1 to 4 devices.

    Parameters
    ----------
    members : sequence of (node, device) or (node, device, state)
        Its workers m1, m2, ...
    sizes : sequence of (seconds since the submission, devices, reason)
    """
    row = running(name, "", (), **fields)
    row.job.gpus, row.job.min_gpus, row.job.max_gpus = 2, 1, 4
    row.job.latency_sensitive = False
    for number, (node, device, *state) in enumerate(members, 1):
        allocation = pb.Allocation(device=device, compute_milli=1000, memory_bytes=80 * GIB)
        row.members.add(
            name=f"m{number}", node=node, allocation=allocation, state=(*state, "member")[0]
        )
    for after_s, gpus, reason in sizes:
        row.sizes.add(time_unix_s=row.submitted_unix_s + after_s, gpus=gpus, reason=reason)
    return row


def node(name="node-00", devices=2, **fields):
    device = pb.DeviceStatus(
        kind="h100", memory_bytes=80 * GIB, free_compute_milli=1000, free_memory_bytes=80 * GIB
    )
    return pb.NodeStatus(name=name, devices=[device] * devices, connected=True, **fields)


def holding(there, jobs):
    """Return the status of a node with its jobs; jobs of other nodes are ignored."""
    found = pb.NodeStatus()
    found.CopyFrom(there)
    for row in jobs:
        own = row.allocations if row.node == there.name else ()
        of_workers = [
            one.allocation
            for one in row.members
            if one.node == there.name and one.state != "leaving"
        ]
        for allocation in (*own, *of_workers):
            if allocation.device < len(found.devices):
                device = found.devices[allocation.device]
                device.free_compute_milli -= allocation.compute_milli
                device.free_memory_bytes -= allocation.memory_bytes
                device.job_ids.append(row.job.job_id)
    return found


def listing(jobs=(), nodes=(), *, unlisted=()):
    """Return a list response; ``unlisted`` jobs appear only in the status of their devices."""
    everyone = (*jobs, *unlisted)
    there = [holding(one, everyone) for one in nodes or [node()]]
    return pb.ListResponse(
        jobs=jobs, nodes=there, policy="sharing", last_entry=7, remaining_job_count=len(unlisted)
    )


def large(nodes, devices, queue, *, least_milli=150, seed=3):
    """Return the list response of a cluster with shared devices, jobs in all states and a queue."""
    rng = Random(seed)
    jobs: list[pb.JobStatus] = []
    rows: list[pb.NodeStatus] = []
    for i in range(nodes):
        why = {3: "its agent is silent for 42 s", 5: "it is drained"}.get(i, "")
        rows.append(
            node(
                f"node-{i:02d}",
                devices,
                reason=why,
                drained=i == 5,
                last_report_age_s=42.0 * (i == 3),
            )
        )
        rows[-1].connected = i != 3
        for device in range(devices):
            milli_left, gib_left = 1000, 80
            while milli_left >= least_milli and gib_left and rng.random() < 0.9:
                milli = min(milli_left, least_milli * rng.choice((1, 1, 2, 3, 4)))
                gib = min(gib_left, milli // 25)
                milli_left, gib_left = milli_left - milli, gib_left - gib
                jobs.append(_any(rng, len(jobs), rows[-1].name, device, milli, gib))
    jobs += [waiting(f"sweep-{i:04d}", i, priority=i % 3) for i in range(1, queue + 1)]
    return listing(jobs, rows)


def _any(rng, number, node, device, milli, gib):
    model = rng.choice(("resnet50", "bert-base", "unet3d", "gpt2-medium"))
    paused, elapsed_s = rng.random() < 0.04, rng.uniform(60, 4200)
    peak = rng.uniform(0.61, 1.01) * gib * GIB
    sensitive = rng.random() < 0.5
    return running(
        f"{model}-{number:04d}",
        node,
        (device,),
        milli=milli,
        memory_bytes=gib * GIB,
        phase=pb.PAUSED if paused else pb.LEAVING if rng.random() < 0.02 else pb.RUNNING,
        reason="the SLO of a co-located job is violated" if paused else "",
        model=model,
        user=rng.choice(("ada", "bob")),
        latency_sensitive=sensitive,
        slo_violated=sensitive and rng.random() < 0.05,
        usage_milli=0.0 if paused else milli * rng.uniform(0.5, 1.1),
        peak_memory_bytes=peak,
        elapsed_s=elapsed_s,
        remaining_s=max(0.0, 3600 - elapsed_s),
        done=min(1.0, elapsed_s / 3600),
    )
