"""Whose a node's tasks are: the cluster that its agent obeys, kept in its state folder."""

from __future__ import annotations

import logging
from pathlib import Path

from presage.serving.server.log import log
from presage.system.atomic_file import replace_text
from presage.system.regular_file import read_small

CLUSTER = "agent.cluster"  # the file's name
_MOST_BYTES = 4096


class OwnCluster:
    """The cluster that an agent obeys.

    Parameters
    ----------
    state : Path
        The agent's folder.

    Attributes
    ----------
    cluster_id : str
        "" while there is none.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / CLUSTER
        self._refused = ""
        try:
            self.cluster_id = read_small(self._path, _MOST_BYTES).decode().strip()
        except (OSError, ValueError):  # none yet
            self.cluster_id = ""

    def obeys(self, cluster_id: str, *, has_tasks: bool) -> bool:
        """Whether orders of a cluster are to be obeyed; of another one only if nothing is lost.

        Parameters
        ----------
        cluster_id : str
            "" of a controller that does not say: it is obeyed.
        has_tasks : bool
            Whether the node has any that are not over.
        """
        if not cluster_id or cluster_id == self.cluster_id:
            return True
        if self.cluster_id and has_tasks:
            self._refuse(cluster_id)
            return False
        self.cluster_id = cluster_id
        self._keep()
        return True

    def _refuse(self, cluster_id: str) -> None:
        if cluster_id == self._refused:
            return
        self._refused = cluster_id
        log(
            logging.ERROR,
            "orders of another cluster are not obeyed: this node's tasks are of the one before; "
            "point the agent to its controller, or stop it and remove the file to give them up",
            cluster=cluster_id,
            tasks_of=self.cluster_id,
            file=str(self._path),
        )

    def _keep(self) -> None:
        try:
            replace_text(self._path, self.cluster_id, durable=True)
        except OSError as error:  # of a full disk: it is known for as long as this agent lives
            log(logging.ERROR, "whose the tasks are was not kept", error=str(error))
