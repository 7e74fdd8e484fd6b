import pytest

from presage.errors import InvalidJobError
from presage.features.device.node_spread import Spread, spread


@pytest.mark.parametrize(
    ("nodes", "devices", "placement", "expected"),
    [
        (3, 4, "1 1 2", Spread(3, 4, 2, 1)),
        (1, 4, "4", Spread(1, 4, 4, 4)),
        (6, 7, "", Spread(6, 7, 2, 1)),  # without a placement they are spread evenly
        (0, 8, "consolidated", Spread(1, 8, 8, 8)),
        (0, 8, "unconsolidated", Spread(8, 8, 1, 1)),
    ],
)
def test_a_placement_is_read_as_devices_of_nodes(nodes, devices, placement, expected):
    assert spread(nodes, devices, placement) == expected


@pytest.mark.parametrize(("nodes", "devices", "placement"), [(3, 2, ""), (2, 4, "1 2")])
def test_an_impossible_spread_is_rejected(nodes, devices, placement):
    with pytest.raises(InvalidJobError):
        spread(nodes, devices, placement)
