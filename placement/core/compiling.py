"""Compilation by numba, where it is installed; else functions run as plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def is_compiled() -> bool:
    """Return whether numba is installed, so that the core is compiled."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def compiled(function: Function) -> Function:
    """Return a function compiled by numba, with its Python source as ``py_func``.

    Without numba the function itself is returned: same results, some hundred times slower.
    """
    if is_compiled():
        import numba

        made: Function = numba.njit(cache=True)(function)
        return made
    function.py_func = function  # type: ignore[attr-defined]
    return function
