"""``presage cluster``: its list of commands."""

from __future__ import annotations

from presage.cli.command import group
from presage.cli.lazy_group import lazy_commands

_COMMANDS = lazy_commands(
    "presage.cli.scheduling.cluster",
    {
        "Run a cluster": {
            "up": "processes.up:up",
            "controller": "processes.controller:controller",
            "agent": "processes.agent:agent",
            "on-ray": "processes.on_ray:on_ray",
            "drain": "nodes.drain:drain",
            "quota": "quota.group:app",
        },
        "Submit and control jobs": {
            "submit": "submit:submit",
            "wait": "wait:wait",
            "cancel": "control.cancel:cancel",
            "hold": "control.hold:hold",
            "release": "control.hold:release",
            "requeue": "control.requeue:requeue",
            "priority": "control.priority:priority",
        },
        "Observe": {
            "ps": "listing.ps:ps",
            "top": "listing.top:top",
            "explain": "explain:explain",
            "when": "when.when:when",
            "logs": "logs:logs",
            "watch": "watch:watch",
            "history": "listing.history:history",
            "outages": "nodes.outages:outages",
            "ui": "ui:ui",
        },
    },
)

app = group(
    "Run a live cluster, whose jobs share devices by forecasts, and submit jobs to it.",
    examples="""
    presage cluster up --agents 2
    presage cluster submit -- python train.py
    presage cluster ps
    """,
    commands=_COMMANDS,
)
