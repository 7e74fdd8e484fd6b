"""``presage slurm restore``."""

from __future__ import annotations

from presage.cli.command import command
from presage.system.text.terminal import say
from presage.system.text.units import counted


@command(examples="presage slurm restore")
def restore() -> None:
    """Give all pending and running jobs their users' own time limits back.

    Run it as SlurmUser after bridge and watcher were stopped for good.
    """
    from presage.schedulers.slurm.watch.slurm_job import Slurm
    from presage.schedulers.slurm.watch.watcher import restore as restore_limits

    say(f"restored the limits of {counted(restore_limits(Slurm()), 'job')}")
