"""``presage slurm``: its list of commands."""

from __future__ import annotations

from presage.cli.command import add_command, group
from presage.cli.scheduling.slurm.bridge import bridge
from presage.cli.scheduling.slurm.files import files
from presage.cli.scheduling.slurm.restore import restore
from presage.cli.scheduling.slurm.sbatch import sbatch
from presage.cli.scheduling.slurm.watch import watch
from presage.cli.scheduling.slurm.when import when

app = group(
    "Set the time limits, memory and shards of Slurm jobs by forecasts.",
    examples="""
    presage slurm sbatch --job job.json -- --gres=gpu:a100:1 train.sh
    presage slurm bridge --predictor presage:50051 --device a100=a100-80gb
    """,
)
for _function in (sbatch, when, bridge, watch, restore, files):
    add_command(app, _function)
