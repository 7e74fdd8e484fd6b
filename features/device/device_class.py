"""Device classes, processors and GPUs: each class has its own networks.

The classes do not share networks: trained on both, networks forecast step times of either class
worse than networks trained on its own rows (decision 12).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from presage.features.columns.schema import columns
from presage.features.device.device import Device
from presage.system.arrays import FloatMatrix

PROCESSOR, GPU = DEVICE_CLASSES = ("processor", "gpu")

# Column of the full feature set; 0 for a processor.
COMPUTE_CAPABILITY = columns("full").index("compute_capability")


def device_class(device: Device) -> str:
    """Return the class of a device."""
    return GPU if device.compute_capability > 0 else PROCESSOR


def device_classes(features: FloatMatrix) -> np.ndarray[Any, np.dtype[np.str_]]:
    """Return the class of each row's device, given columns of the full set."""
    return np.where(features[:, COMPUTE_CAPABILITY] > 0, GPU, PROCESSOR)
