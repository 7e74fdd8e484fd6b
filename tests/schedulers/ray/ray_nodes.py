"""Ray cluster of this host whose nodes have a processor each: ``ray_nodes.py NODES``.

Prints its address, then obeys lines on stdin: ``kill NUMBER`` loses a node, ``add`` adds one. It
ends with its stdin. It is a process of its own: Ray sends SIGTERM to processes that used a node
that is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class RayNodes:
    """Ray cluster in a process of its own.

    Attributes
    ----------
    address : str
        HOST:PORT of the cluster.
    node_ids : list of str
        Ray's ids of the nodes with a processor.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        started = json.loads(self._line())
        self.address: str = started["address"]
        self.node_ids: list[str] = started["nodes"]

    def kill(self, number: int) -> None:
        """Lose a node, without notice."""
        self._order(f"kill {number}")

    def add(self) -> None:
        """Add a node with one processor."""
        self.node_ids.append(self._order("add"))

    def _order(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        """Return the next line that is ours."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(">"):
                return line[1:].strip()
        raise AssertionError("Ray did not start")


@contextmanager
def ray_nodes(count: int, environment: dict[str, str]) -> Iterator[RayNodes]:
    """Yield a Ray cluster with a head without processors, and nodes with one processor each."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **environment},
        start_new_session=True,
    )  # fmt: skip
    try:
        yield RayNodes(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _say(line: str) -> None:
    sys.stdout.write(f">{line}\n")
    sys.stdout.flush()


def main() -> None:
    from ray.cluster_utils import Cluster

    processors = sorted(os.sched_getaffinity(0))
    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes: list[Any] = []

    def add() -> None:
        # The processes of the node inherit the processor.
        os.sched_setaffinity(0, {processors[len(nodes) % len(processors)]})
        nodes.append(cluster.add_node(num_cpus=1))
        os.sched_setaffinity(0, processors)

    try:
        for _ in range(int(sys.argv[1])):
            add()
        ids = [node.node_id for node in nodes]
        _say(json.dumps({"address": cluster.address, "nodes": ids}))
        for line in sys.stdin:
            if line.startswith("add"):
                add()
            else:
                cluster.remove_node(nodes[int(line.split()[1])], allow_graceful=False)
            _say(nodes[-1].node_id)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
