"""``presage cluster cancel``."""

from __future__ import annotations

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions, Jobs


@command(examples="presage cluster cancel resnet-1f2e3d4c")
def cancel(jobs: Jobs, connection: ConnectionOptions) -> None:
    """Cancel jobs: stop them, or remove them from the queue."""
    with connection.connected() as client:
        client.cancel(jobs)
