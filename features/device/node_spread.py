"""Distribution of one job's devices over nodes."""

from __future__ import annotations

from dataclasses import dataclass

from presage.errors import InvalidJobError


@dataclass(frozen=True, slots=True)
class Spread:
    """Devices that run a step together.

    Attributes
    ----------
    nodes, devices : int
    widest, narrowest : int
        Largest and smallest number of devices on one node.
    """

    nodes: int
    devices: int
    widest: int
    narrowest: int

    def __post_init__(self) -> None:
        is_ordered = 1 <= self.narrowest <= self.widest
        least, capacity = self.widest + self.nodes - 1, self.widest * self.nodes
        if not (is_ordered and least <= self.devices <= capacity):
            raise InvalidJobError(
                f"{self.devices} devices on {self.nodes} nodes, {self.narrowest} to {self.widest} "
                "on each, is impossible; give the numbers of nodes and devices that the job used"
            )


def spread(nodes: int, devices: int, placement: str) -> Spread:
    """Return the spread of a row of `scale_out`; without a node list devices are spread evenly.

    Raises
    ------
    InvalidJobError
        The row has more nodes than devices, or the placement has a different number of devices.
    """
    words = placement.split()
    if words and all(word.isdigit() for word in words):
        each = [int(word) for word in words]
        if sum(each) != devices:
            raise InvalidJobError(
                f"placement {placement!r} has {sum(each)} devices, not {devices}; correct the row"
            )
        return Spread(len(each), devices, max(each), min(each))
    nodes = nodes or (devices if placement == "unconsolidated" else 1)
    return Spread(nodes, devices, -(-devices // nodes), devices // nodes)
