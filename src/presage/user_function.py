"""A user's ``module:function`` called and traced; whatever it raises is one line of ours."""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import presage
from presage.features.errors import GraphError
from presage.features.job import JobFeatures
from presage.serving import job_features


def trace_function(
    source: str, *, batch_size: int, iterations: int, optimizer: str, precision: str
) -> JobFeatures:
    """Features of what ``module:function`` makes; it is called under the meta device.

    The function, or class, takes the batch size if it has a parameter, and returns
    ``(module, inputs)``.

    Raises
    ------
    GraphError
        It cannot be imported, called or traced; names the line of the user's file.
    """
    # Before the user's module: that torch is missing is not the user's mistake.
    torch = importlib.import_module("torch")
    name = source.partition(":")[2]
    with _one_line(source), _importable_from_here():
        function = _find(source)
        with torch.device("meta"):
            made = _call(function, batch_size)
        if (
            not isinstance(made, tuple)
            or len(made) != 2
            or not isinstance(made[0], torch.nn.Module)
        ):
            raise GraphError(
                f"returned {type(made).__name__}; return (torch module, inputs), "
                "inputs being one tensor or a tuple of tensors"
            )
        return job_features.from_module(
            *made,
            iterations=iterations,
            optimizer=optimizer,
            precision=precision,
            name=name,
            family=name,
        )


@contextmanager
def _one_line(source: str) -> Iterator[None]:
    """Errors of a user's code as a GraphError of one line."""
    try:
        yield
    except GraphError as error:
        place = _place(error.__cause__) if error.__cause__ else ""
        raise GraphError(f"{source}: {error}{place}") from error
    except (Exception, SystemExit) as error:
        first = str(error).strip().partition("\n")[0]
        said = f": {first}" if first else ""
        raise GraphError(f"{source}: {type(error).__name__}{said}{_place(error)}") from error


@contextmanager
def _importable_from_here() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _find(source: str) -> Any:
    module_name, _, name = source.partition(":")
    hint = f"give module:function, importable from {Path.cwd()}"
    try:
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


def _place(error: BaseException) -> str:
    """Where in the user's own code an error arose: the innermost line outside of libraries."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({_short(error.filename)}, line {error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_libraries())):
            return f" ({_short(frame.filename)}, line {frame.lineno})"
    return ""


def _libraries() -> tuple[str, ...]:
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return (*folders, str(Path(presage.__file__).parent))


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
