"""A user's ``module:function``: found from the current folder, called, and checked."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.errors import GraphError

if TYPE_CHECKING:
    from torch import Tensor, nn


def call_user_function(source: str, batch_size: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Call ``module:function`` and return a module and its inputs, on the default device.

    The function or class gets the batch size if it has a parameter. Its exceptions are not caught.

    Raises
    ------
    GraphError
        The function does not exist, or returns something else.
    """
    torch = importlib.import_module("torch")
    with importable_from_here():
        made = _call(find_user_object(source), batch_size)
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], torch.nn.Module):
        raise GraphError(
            f"returned {type(made).__name__}; return (torch module, inputs), "
            "inputs being one tensor or a tuple of tensors"
        )
    module, inputs = made
    tensors = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(tensors, list | tuple) or not all(
        isinstance(tensor, torch.Tensor) for tensor in tensors
    ):
        raise GraphError(
            f"returned inputs of type {type(inputs).__name__}; return one tensor or a tuple of "
            "tensors, in the order that the module's forward takes them"
        )
    return module, tuple(tensors)


@contextmanager
def importable_from_here() -> Iterator[None]:
    """Put the current folder at the head of the import path."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def find_user_object(source: str, what: str = "function") -> Any:
    """Return the function or class ``module:name``, importable from the current folder.

    Exceptions of the user's module itself are not caught.

    Parameters
    ----------
    what : str
        Noun for what is named, for errors.

    Raises
    ------
    GraphError
        The module does not exist, or has nothing callable of that name.
    """
    module_name, _, name = source.partition(":")
    hint = f"give module:{what}, importable from {Path.cwd()}"
    if not module_name or not name:
        raise GraphError(f"{source!r} is not module:{what}; {hint}")
    try:
        with importable_from_here():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name not in (module_name, module_name.partition(".")[0]):
            raise  # something that the user's module imports
        raise GraphError(f"{error}; {hint}") from None
    function = getattr(module, name, None)
    if function is None:
        raise GraphError(f"module {module_name!r} has no {what} {name!r}; {hint}")
    if not callable(function):
        raise GraphError(f"{name!r} of module {module_name!r} is not callable; {hint}")
    return function


def takes_batch_size(function: Any) -> bool:
    """Return whether a function or class has a parameter that the batch size is passed to."""
    return _batch_argument(function) is not None


def _call(function: Any, batch_size: int) -> Any:
    argument = _batch_argument(function)
    if argument is None:
        return function()
    return function(batch_size=batch_size) if argument else function(batch_size)


def _batch_argument(function: Any) -> str | None:
    """Return "batch_size", "" for the first positional parameter, or None if there is none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some builtins have none
        return None
    kinds = {parameter.name: parameter.kind for parameter in parameters}
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if kinds.get("batch_size") not in (None, inspect.Parameter.POSITIONAL_ONLY):
        return "batch_size"
    return "" if any(kind in positional for kind in kinds.values()) else None
