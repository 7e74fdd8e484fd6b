"""``presage models``: its list of commands."""

from __future__ import annotations

from presage.cli.command import add_command, group
from presage.cli.training.models.delete import delete
from presage.cli.training.models.diff import diff
from presage.cli.training.models.gate import gate
from presage.cli.training.models.history import history
from presage.cli.training.models.list_releases import list_releases
from presage.cli.training.models.promote import promote
from presage.cli.training.models.register import register
from presage.cli.training.models.rollback import rollback
from presage.cli.training.models.show import show
from presage.cli.training.models.signing import keygen, sign, verify
from presage.cli.training.models.trained_on import trained_on

_INSPECT, _CHANGE, _SIGN = "Inspect releases", "Change the champion", "Sign releases"

app = group(
    "Manage releases in a model registry: inspect, compare, promote and roll back.",
    examples="""
    presage models list
    presage models promote 7
    presage models rollback --reason "slow on the H100 nodes"
    """,
)
add_command(app, list_releases, name="list", panel=_INSPECT)
for _function in (show, diff):
    add_command(app, _function, panel=_INSPECT)
add_command(app, trained_on, name="trained-on", panel=_INSPECT)
for _function in (gate, promote, rollback, history, register, delete):
    add_command(app, _function, panel=_CHANGE)
for _function in (keygen, sign, verify):
    add_command(app, _function, panel=_SIGN)
