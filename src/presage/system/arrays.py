"""Types of numpy arrays, named after what they contain; docstrings state their shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

AnyArray = np.ndarray[Any, Any]
Array = np.ndarray[Any, np.dtype[np.float64]]
Matrix = np.ndarray[Any, np.dtype[np.float64]]
Float32s = np.ndarray[Any, np.dtype[np.float32]]
FloatMatrix = Matrix | Float32s  # for results that do not depend on the last digits
Ints = np.ndarray[Any, np.dtype[np.intp]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Names = np.ndarray[Any, np.dtype[np.object_]]
