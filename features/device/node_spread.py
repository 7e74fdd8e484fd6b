"""Where the devices of one job are: how many on each node."""

from __future__ import annotations

from dataclasses import dataclass

from presage.errors import InvalidJobError


@dataclass(frozen=True, slots=True)
class Spread:
    """Devices that step together.

    Attributes
    ----------
    nodes, devices : int
    widest, narrowest : int
        Most and fewest devices on one node.
    """

    nodes: int
    devices: int
    widest: int
    narrowest: int

    def __post_init__(self) -> None:
        whole = 1 <= self.narrowest <= self.widest
        if not (whole and self.widest + self.nodes - 1 <= self.devices <= self.widest * self.nodes):
            raise InvalidJobError(
                f"{self.devices} devices on {self.nodes} nodes, {self.narrowest} to {self.widest} "
                "on each, cannot be; give as many nodes and devices as there were"
            )


def spread(nodes: int, devices: int, placement: str) -> Spread:
    """Of a row of `scale_out`; where it does not say how many are where, they are spread evenly.

    Raises
    ------
    InvalidJobError
        There are more nodes than devices, or the placement has other devices.
    """
    words = placement.split()
    if words and all(word.isdigit() for word in words):
        each = [int(word) for word in words]
        if sum(each) != devices:
            raise InvalidJobError(
                f"placement {placement!r} has {sum(each)} devices, not {devices}; mend the row"
            )
        return Spread(len(each), devices, max(each), min(each))
    nodes = nodes or (devices if placement == "unconsolidated" else 1)
    return Spread(nodes, devices, -(-devices // nodes), devices // nodes)
