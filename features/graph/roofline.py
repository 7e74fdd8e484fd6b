"""Roofline: the least time a device needs for a job's step, summed operator by operator.

Each operator takes the larger of its compute time and its memory time (Williams, Waterman,
Patterson: Roofline, CACM 2009), plus the device's overhead per operator. Runtime predictors learn
the residual over the roofline, which generalizes to unseen devices.

A share scales arithmetic and bandwidth alike. This is right for time-slices, quotas and MIG; for
MPS, which does not limit bandwidth, it is too low. The residual learns the difference.
"""

from __future__ import annotations

import numpy as np

from presage.features.device.device_table import RATES
from presage.features.graph.op_class import OP_CLASSES
from presage.features.graph.op_kinds import CONVOLUTIONS
from presage.system.arrays import Ints, Matrix

# Operators that reach the peak of their precision (tensor cores); others run at fp32's.
MATRIX_KINDS = frozenset({"MatMul", *CONVOLUTIONS, "Attention", "Recurrent"})

# Index in `RATES` of a class's arithmetic and of its bytes; shape (2, classes).
RATE_OF_CLASS = np.array([[kind in MATRIX_KINDS, 2] for kind, _, _ in OP_CLASSES], dtype=np.intp).T


def op_seconds(work: Matrix, rates: Matrix, row: Ints, op_classes: Ints) -> Matrix:
    """Return compute and memory times of operators on shares of devices, shape (2, visits).

    Parameters
    ----------
    work : ndarray of shape (2, visits)
        FLOPs and bytes moved of each operator.
    rates : ndarray of shape (rows, ``RATES``)
        Rates of the shares.
    row, op_classes : ndarray of int, shape (visits,)
        Row for which an operator is visited, and the operator's class.
    """
    index = RATE_OF_CLASS.take(op_classes, axis=1) + len(RATES) * row
    seconds: Matrix = work / rates.take(index)
    return seconds
