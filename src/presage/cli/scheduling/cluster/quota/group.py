"""``presage cluster quota``: its list of commands."""

from __future__ import annotations

from presage.cli.command import add_command, group
from presage.cli.scheduling.cluster.quota.change import remove_quota, set_quota
from presage.cli.scheduling.cluster.quota.list_quotas import list_quotas

app = group(
    "Limit the devices that users hold at once, and weigh users for fair share.",
    examples="""
    presage cluster quota set ana --devices 4
    presage cluster quota list
    """,
)
add_command(app, set_quota, name="set")
add_command(app, list_quotas, name="list")
add_command(app, remove_quota, name="remove")
