"""``presage cluster hold`` and ``release``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions, Jobs


@command(examples="presage cluster hold resnet-1f2e3d4c")
def hold(jobs: Jobs, connection: ConnectionOptions) -> None:
    """Keep waiting jobs from starting until they are released.

    A running job goes on, and waits once it has returned to the queue: follow with `presage cluster
    requeue` to stop it now.
    """
    with connection.connected() as client:
        client.hold(jobs)


@command(examples="presage cluster release resnet-1f2e3d4c")
def release(jobs: Jobs, connection: ConnectionOptions) -> None:
    """Let jobs start again that are held.

    Only administrators release jobs that an administrator holds for another user.
    """
    with connection.connected() as client:
        client.release(jobs)
