"""Actions on jobs and nodes, and the rules by which the page offers them.

The controller checks each action again, by the token of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.ui.figures import ON_NODE, query_string
from presage.schedulers.v1 import cluster_pb2 as pb

READ_ONLY = (
    "this page only shows the cluster; start `presage cluster ui` with --allow-actions to allow "
    "actions"
)


class Options(NamedTuple):
    """What the confirmation asks for, for some actions."""

    evict: bool = False
    reason: str = ""


class Action(NamedTuple):
    """Action of the page.

    Attributes
    ----------
    consequence : str
        What it does, for its confirmation.
    run : callable
        Performs it on the job or node of a name.
    """

    name: str
    button: str
    is_job: bool
    consequence: str
    run: Callable[[ClusterClient, str, Options], object]

    def url(self, name: str) -> str:
        """Return the address of its confirmation."""
        return f"/actions?{query_string({'do': self.name, 'name': name})}"


ACTIONS = {
    one.name: one
    for one in (
        Action(
            "cancel", "Cancel job", True,
            "The job ends for good, and does not save its state.",
            lambda client, name, _options: client.cancel([name]),
        ),
        Action(
            "hold", "Hold job", True,
            "The job does not start until it is released. If it runs, it goes on.",
            lambda client, name, _options: client.hold([name]),
        ),
        Action(
            "release", "Release job", True,
            "The job may start.",
            lambda client, name, _options: client.release([name]),
        ),
        Action(
            "drain", "Drain node", False,
            "The node gets no more jobs until it is resumed.",
            lambda client, name, options: client.drain(
                name, evict=options.evict, reason=options.reason
            ),
        ),
        Action(
            "resume", "Resume node", False,
            "The node gets jobs again.",
            lambda client, name, _options: client.drain(name, undo=True),
        ),
    )
}  # fmt: skip


class Offer(NamedTuple):
    """Action that the page offers for a job or node."""

    action: Action
    url: str


def job_offers(row: pb.JobStatus) -> list[Offer]:
    """Return the actions that are possible in the state of a job."""
    if row.phase != pb.WAITING and row.phase not in ON_NODE:
        return []
    names = ("release" if row.held else "hold", "cancel")
    return _offers(names, row.job.job_id)


def node_offers(node: pb.NodeStatus) -> list[Offer]:
    """Return the actions that are possible in the state of a node."""
    return _offers(("resume" if node.drained else "drain",), node.name)


def _offers(names: Iterable[str], name: str) -> list[Offer]:
    return [Offer(ACTIONS[one], ACTIONS[one].url(name)) for one in names]


def why_disabled(
    found: pb.ListResponse | None, *, is_allowed: bool, row: pb.JobStatus | None = None
) -> str:
    """Return why the page cannot perform actions; "" if it can.

    Parameters
    ----------
    found : ListResponse or None
        Last response of the controller, with the roles of the page's token.
    is_allowed : bool
        Whether the page was started with --allow-actions.
    row : JobStatus, optional
        Job to act on; a node if left out.
    """
    if not is_allowed:
        return READ_ONLY
    if found is None:
        return "the controller has not responded yet"
    roles = frozenset(found.client_roles)
    if "admin" in roles:
        return ""
    return _why_no_admin(found, roles, row)


def _why_no_admin(found: pb.ListResponse, roles: frozenset[str], row: pb.JobStatus | None) -> str:
    if not roles:
        return "the controller is of an earlier version, which does not report the page's roles"
    if "submit" not in roles:
        return (
            "this page has no token with the role submit or admin; start `presage cluster ui` "
            "with --token-file"
        )
    if row is None:
        return "this page's token lacks the role admin, which actions on nodes require"
    if row.job.user != found.client:
        return (
            f"the job belongs to {row.job.user or 'another user'}, and this page's token to "
            f"{found.client}"
        )
    return ""
