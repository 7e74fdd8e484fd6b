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
    """What ``module:function`` makes on the default device: a module and its inputs.

    The function, or class, takes the batch size if it has a parameter. Whatever it raises is
    let through.

    Raises
    ------
    GraphError
        It is not there, or returns something else.
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
    """The current folder at the head of the import path."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def find_user_object(source: str, what: str = "function") -> Any:
    """Return the function or class that ``module:name`` says, importable from the current folder.

    Errors of the user's module itself are let through.

    Parameters
    ----------
    what : str
        What the name is of, for errors.

    Raises
    ------
    GraphError
        There is no such module, or nothing callable of that name in it.
    """
    module_name, _, name = source.partition(":")
    hint = f"give module:{what}, importable from {Path.cwd()}"
    try:
        with importable_from_here():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name not in (module_name, module_name.partition(".")[0]):
            raise  # something that the user's module imports
        raise GraphError(f"{error}; {hint}") from None
    function = getattr(module, name, None)
    if not callable(function):
        found = "is not callable" if hasattr(module, name) else "is not there"
        raise GraphError(f"{name!r} {found} in module {module_name!r}; {hint}")
    return function


def _call(function: Any, batch_size: int) -> Any:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some builtins have none
        return function()
    kinds = {parameter.name: parameter.kind for parameter in parameters}
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if kinds.get("batch_size") not in (None, inspect.Parameter.POSITIONAL_ONLY):
        return function(batch_size=batch_size)
    return function(batch_size) if any(k in positional for k in kinds.values()) else function()
