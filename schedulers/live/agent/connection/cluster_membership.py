"""Cluster that a node belongs to, stored in the agent's state folder."""

from __future__ import annotations

import logging
from pathlib import Path

from presage.serving.server.log import log
from presage.system.files.atomic_file import replace_text
from presage.system.files.regular_file import read_small

CLUSTER = "agent.cluster"  # name of the file in the state folder
_MAX_BYTES = 4096


class ClusterMembership:
    """Cluster whose orders an agent applies.

    Parameters
    ----------
    state : Path
        State folder of the agent.

    Attributes
    ----------
    cluster_id : str
        "" while the node belongs to no cluster.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / CLUSTER
        self._rejected = ""
        try:
            self.cluster_id = read_small(self._path, _MAX_BYTES).decode().strip()
        except (OSError, ValueError):  # no cluster yet
            self.cluster_id = ""

    def accepts(self, cluster_id: str, *, has_tasks: bool) -> bool:
        """Return whether to apply a cluster's orders; join it if the node has no tasks to lose.

        Parameters
        ----------
        cluster_id : str
            "" from a controller that does not send its id: its orders are applied.
        has_tasks : bool
            Whether the node has tasks that have not ended.
        """
        if not cluster_id or cluster_id == self.cluster_id:
            return True
        if self.cluster_id and has_tasks:
            self._reject(cluster_id)
            return False
        self.cluster_id = cluster_id
        self._store()
        return True

    def _reject(self, cluster_id: str) -> None:
        if cluster_id == self._rejected:
            return
        self._rejected = cluster_id
        log(
            logging.ERROR,
            "orders of another cluster are ignored: this node's tasks belong to the previous "
            "cluster; point the agent to its controller, or stop the agent and remove the file to "
            "give the tasks up",
            cluster=cluster_id,
            tasks_of=self.cluster_id,
            file=str(self._path),
        )

    def _store(self) -> None:
        try:
            replace_text(self._path, self.cluster_id, durable=True)
        except OSError as error:  # full disk: the id lasts for the life of this process
            log(logging.ERROR, "the cluster of the node cannot be stored", error=str(error))
