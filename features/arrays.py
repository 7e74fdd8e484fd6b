"""Array types by element type; docstrings where they are used give the shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Matrix = np.ndarray[Any, np.dtype[np.float64]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
FloatMatrix = Matrix | Floats  # for values whose last digits do not matter
Ints = np.ndarray[Any, np.dtype[np.intp]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
