"""``presage cluster requeue``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions, Jobs


@command(examples="presage cluster requeue resnet-1f2e3d4c")
def requeue(jobs: Jobs, connection: ConnectionOptions) -> None:
    """Stop running jobs, and return them to the queue.

    As before a preemption, a job has --grace-s of `presage cluster submit` to save its state, and
    continues from it. It may start again at once; `presage cluster hold` prevents that.
    """
    with connection.connected() as client:
        client.requeue(jobs)
