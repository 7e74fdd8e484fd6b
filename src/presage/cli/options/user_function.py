"""Features of the model that a user's ``module:function`` returns."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

from presage.errors import GraphError
from presage.features.job.job_description import JobFeatures
from presage.serving.client import job_features
from presage.system.processes.user_object import (
    call_user_function,
    find_user_object,
    importable_from_here,
    takes_batch_size,
)
from presage.system.text.user_code import place_of


def trace_function(
    source: str, *, batch_size: int, iterations: int, optimizer: str, precision: str,
    batch_is_given: bool = False,
) -> JobFeatures:  # fmt: skip
    """Return the features of the model that ``module:function`` returns on the meta device.

    The function, or class, takes the batch size if it has a parameter, and returns
    ``(module, inputs)``. With ``batch_is_given`` it has to have one.

    Raises
    ------
    GraphError
        The function cannot be imported, called or traced, or has no parameter for a batch size
        that was given. The message names the user's line.
    """
    # Before the user's module, so that a missing torch is reported as such.
    torch = importlib.import_module("torch")
    name = source.partition(":")[2]
    # Also while tracing, for tensors that the model's forward creates.
    with _one_line(source), importable_from_here(), torch.device("meta"):
        if batch_is_given:
            _check_batch_size(source)
        module, inputs = call_user_function(source, batch_size)
        return job_features.from_module(
            module, inputs,
            iterations=iterations, optimizer=optimizer, precision=precision, name=name, family=name,
        )  # fmt: skip


def _check_batch_size(source: str) -> None:
    if not takes_batch_size(find_user_object(source)):
        raise GraphError(
            "has no parameter batch_size, so --batch-size cannot change its batch; add the "
            "parameter, or leave out the option"
        )


@contextmanager
def _one_line(source: str) -> Iterator[None]:
    """Raise errors of the user's code as a GraphError of one line."""
    try:
        yield
    except GraphError as error:
        place = place_of(error.__cause__) if error.__cause__ else ""
        raise GraphError(f"{source}: {error}{place}") from error
    except (Exception, SystemExit) as error:
        first = str(error).strip().partition("\n")[0]
        message = f": {first}" if first else ""
        raise GraphError(f"{source}: {type(error).__name__}{message}{place_of(error)}") from error
