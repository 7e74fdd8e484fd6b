"""``presage inc``: its list of commands."""

from __future__ import annotations

from presage.cli.command import add_command, group
from presage.cli.scheduling.inc.arbiter import arbiter
from presage.cli.scheduling.inc.demo import demo
from presage.cli.scheduling.inc.explain import explain
from presage.cli.scheduling.inc.forecast import forecast
from presage.cli.scheduling.inc.status import status
from presage.cli.scheduling.inc.switch import switch
from presage.cli.scheduling.inc.switch_status import switch_status
from presage.cli.scheduling.inc.timeline import timeline

_RUN, _OBSERVE = "Run", "Observe"

app = group(
    "Share switches that compute AllReduces (in-network computing) between jobs.",
    examples="""
    sudo presage inc demo
    presage inc switch --controlled --port 7200
    presage inc arbiter --switch tor=10.0.0.1:7200
    presage inc status
    presage inc explain resnet
    """,
)
for _function in (demo, switch, arbiter, forecast):
    add_command(app, _function, panel=_RUN)
for _function in (status, explain, timeline):
    add_command(app, _function, panel=_OBSERVE)
add_command(app, switch_status, name="switch-status", panel=_OBSERVE)
