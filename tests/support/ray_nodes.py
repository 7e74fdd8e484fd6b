"""Ray cluster of this host whose nodes have a processor each: ``ray_nodes.py NODES``.

Prints its address, then obeys lines on stdin: ``kill NUMBER`` loses a node. It ends with its stdin.
It is a process of its own: Ray sends SIGTERM to processes that used a node that is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 120.0


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
        assert self._process.stdin is not None
        self._process.stdin.write(f"kill {number}\n")
        self._process.stdin.flush()
        assert self._line() == "killed"

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
    try:
        nodes = []
        for number in range(int(sys.argv[1])):
            # The processes of the node inherit it.
            os.sched_setaffinity(0, {processors[number % len(processors)]})
            nodes.append(cluster.add_node(num_cpus=1))
        os.sched_setaffinity(0, processors)
        ids = [node.node_id for node in nodes]
        _say(json.dumps({"address": cluster.address, "nodes": ids}))
        for line in sys.stdin:
            cluster.remove_node(nodes[int(line.split()[1])], allow_graceful=False)
            _say("killed")
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    main()
