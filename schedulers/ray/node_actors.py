"""Actors that hold the devices of a live cluster's nodes, in one placement group of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from presage.errors import ConfigError, ServiceError, one_line
from presage.schedulers.ray.node_actor import AgentSettings, NodeActor, RayNode
from presage.schedulers.ray.node_bundles import NodeBundle

CHECK_S = 1.0  # between checks of the actors and of the placement group
_REMOVED = "REMOVED"


@contextmanager
def reserved_nodes(ray: Any, bundles: Sequence[NodeBundle], within_s: float) -> Iterator[Any]:
    """Yield a placement group that has each bundle on a node of its own; remove it on exit.

    It belongs to this driver: Ray also removes it when the driver ends in any other way.

    Raises
    ------
    ConfigError
        Ray has not granted the bundles in time.
    """
    from ray.util import placement_group, remove_placement_group

    rows = [bundle.resources() for bundle in bundles]
    group = placement_group(rows, strategy="STRICT_SPREAD", name="presage-cluster")
    try:
        if not group.wait(within_s):
            raise ConfigError(
                f"Ray has not granted {_described(bundles)} within {within_s:g} s; others may "
                "hold them: see `ray status`, or request less by --nodes, --gpus and --cpus"
            )
        yield group
    finally:
        with suppress(Exception):  # Ray itself may be gone; it removes the group with the driver
            remove_placement_group(group)


class NodeActors:
    """One actor for each bundle of a placement group; an actor that ends is replaced.

    If the node of an actor is lost, Ray moves the bundle to another node once one has the devices,
    and the actor follows.

    Parameters
    ----------
    token_of : callable
        Returns the token of a node's agent.
    report : callable
        Receives one line for each node that joins or is lost.
    """

    def __init__(
        self,
        ray: Any,
        group: Any,
        bundles: Sequence[NodeBundle],
        settings: AgentSettings,
        *,
        memory_gib: float | None,
        token_of: Callable[[RayNode], str],
        report: Callable[[str], object],
    ) -> None:
        self._ray, self._group, self._bundles = ray, group, bundles
        self._settings, self._memory_gib = settings, memory_gib
        self._token_of, self._report = token_of, report
        self._pending: dict[Any, tuple[int, Any]] = {}  # call of an actor -> bundle, actor
        self._names: dict[int, str] = {}  # of the bundles whose agent runs
        for index in range(len(bundles)):
            self._start(index)

    def check(self) -> None:
        """Wait up to ``CHECK_S`` for changes of the actors, and handle them.

        Raises
        ------
        ServiceError
            The placement group was removed, or Ray does not respond.
        ConfigError
            A node cannot be used.
        """
        try:
            ready, _ = self._ray.wait(list(self._pending), timeout=CHECK_S)
            if self._state() == _REMOVED:
                raise ServiceError("the placement group was removed: the cluster ends")
            for call in ready:
                self._handle(call)
        except (self._ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise ServiceError(f"Ray does not respond ({one_line(error)})") from error

    def _handle(self, call: Any) -> None:
        index, actor = self._pending.pop(call)
        try:
            node: RayNode = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise ConfigError(one_line(error.cause)) from error
        except self._ray.exceptions.RayActorError as error:
            name = self._names.pop(index, f"bundle {index}")
            self._report(f"lost {name} ({_reason(error)}); its jobs end within their lease")
            self._start(index)
            return
        self._names[index] = node.name
        running = actor.run.remote(self._settings, self._token_of(node))
        self._pending[running] = index, actor
        devices = ", ".join(f"{count} {kind}" for kind, count in node.devices.items())
        self._report(f"agent of {node.name} with {devices}")

    def _start(self, index: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._bundles[index]
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        options = self._ray.remote(NodeActor).options(
            num_cpus=bundle.cpus, num_gpus=bundle.gpus, scheduling_strategy=place
        )
        actor = options.remote(bundle, self._memory_gib)
        self._pending[actor.node.remote()] = index, actor

    def _state(self) -> str:
        from ray.util import placement_group_table

        return str(placement_group_table(self._group).get("state"))


def _described(bundles: Sequence[NodeBundle]) -> str:
    largest = bundles[0].resources()
    each = " and ".join(f"{count:g} {name}" for name, count in largest.items())
    return f"{len(bundles)} nodes with up to {each}"


def _reason(error: Exception) -> str:
    """Return the line of Ray's error that says why an actor ended."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "no reason given"
