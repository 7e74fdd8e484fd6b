"""Roofline: the least time a device needs for a job's step, summed operator by operator.

Each operator takes the larger of its compute time and its memory time (Williams, Waterman,
Patterson: Roofline, CACM 2009), plus the device's overhead per operator. Runtime predictors learn
the residual over it, which is what carries them to devices they never saw.

A share scales arithmetic and bandwidth alike: right for time-slices, quotas and MIG, too low a
bandwidth for MPS, which leaves it whole. The residual learns the difference.
"""

from __future__ import annotations

import numpy as np

from presage.features.device.device_table import RATES
from presage.features.graph.op_class import OP_CLASSES
from presage.features.graph.op_kinds import CONVOLUTIONS
from presage.system.arrays import Ints, Matrix

# Operators that reach a precision's own peak (tensor cores); the rest run at fp32's.
MATRIX_KINDS = frozenset({"MatMul", *CONVOLUTIONS, "Attention", "Recurrent"})

# Which of `RATES` a class's arithmetic runs at, and which its bytes; shape (2, classes).
_RATE = np.array([[kind in MATRIX_KINDS, 2] for kind, _, _ in OP_CLASSES], dtype=np.intp).T


def op_seconds(work: Matrix, rates: Matrix, row: Ints, op_classes: Ints) -> Matrix:
    """Compute and memory times of operators on shares of devices, shape (2, visits).

    Parameters
    ----------
    work : ndarray of shape (2, visits)
        FLOPs and bytes moved of each operator.
    rates : ndarray of shape (rows, ``RATES``)
        Of the shares.
    row, op_classes : ndarray of int, shape (visits,)
        Which row an operator is visited for, and its class.
    """
    which = _RATE.take(op_classes, axis=1) + len(RATES) * row
    seconds: Matrix = work / rates.take(which)
    return seconds
