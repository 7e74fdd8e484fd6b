"""``presage cluster quota list``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.system.text.terminal import Name, Table, print_table

if TYPE_CHECKING:
    from presage.schedulers.v1 import cluster_pb2 as pb


@command(
    examples="""
    presage cluster quota list
    presage cluster quota list --json
    """
)
def list_quotas(connection: ConnectionOptions, as_json: Json = False) -> None:
    """List the quotas of users, the devices that they hold, and their past use.

    The past use is in device-hours, which count half after each half-life.
    """
    from presage.cli.output.json_output import message_content, print_json

    with connection.connected() as client:
        found = client.quotas()
    if as_json:
        print_json(message_content(found))
    else:
        print_table(_table(found))


def _table(found: pb.QuotasResponse) -> Table:
    """Return a row per user, after that of the default."""
    from presage.cli.scheduling.cluster.listing.job_table import age_text
    from presage.cli.scheduling.cluster.tables import compact_table

    order = "by fair share" if found.fair_share else "without fair share"
    table = compact_table(f"jobs are ordered {order}; half-life {age_text(found.half_life_s)}")
    for column in ("user", "holds", "quota", "weight", "past use (h)"):
        table.add_column(column, justify="left" if column == "user" else "right")
    base = found.default_quota
    table.add_row("(default)", "", _devices(base, base), _weight(base, base), "")
    for row in found.users:
        held, used_h = f"{row.held_devices:g}", row.used_device_s / 3600
        quota = row.quota
        table.add_row(
            Name(quota.user), held, _devices(quota, base), _weight(quota, base), f"{used_h:.2f}"
        )
    return table


def _devices(quota: pb.Quota, default: pb.Quota) -> str:
    one = quota if quota.HasField("devices") else default
    return f"{one.devices:g}" if one.HasField("devices") else "-"


def _weight(quota: pb.Quota, default: pb.Quota) -> str:
    one = quota if quota.HasField("weight") else default
    return f"{one.weight:g}" if one.HasField("weight") else "1"
