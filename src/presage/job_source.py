"""What a person may name as a job on the command line, turned into job features."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from presage.features.errors import GraphError, InvalidJobError
from presage.features.job import JobFeatures
from presage.serving import job_features


def read_job(
    source: str,
    *,
    batch_size: int,
    iterations: int,
    optimizer: str,
    precision: str = "fp32",
    dims: Sequence[str] | None = None,
) -> JobFeatures:
    """Features of an ONNX file, a JSON file of job features, or ``module:function``.

    Raises
    ------
    GraphError
        The model cannot be read or traced.
    InvalidJobError
        The JSON file does not describe a job, or a dimension is not NAME=N.
    """
    path = Path(source)
    if path.suffix == ".json":
        try:
            text = path.read_text()
        except OSError as error:
            raise InvalidJobError(
                f"{path}: cannot be read ({error.strerror}); check the path"
            ) from error
        return job_features.from_json(text, source=source)
    if ":" in source and not path.exists():
        return _from_function(
            source,
            batch_size=batch_size,
            iterations=iterations,
            optimizer=optimizer,
            precision=precision,
        )
    return job_features.from_onnx(
        path,
        batch_size=batch_size,
        iterations=iterations,
        dims=dict(_dimension(text) for text in dims or ()),
        optimizer=optimizer,
        precision=precision,
    )


def _dimension(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not name or not size.isdigit():
        raise InvalidJobError(f"--dim {text!r} is not NAME=N; write it like --dim sequence=128")
    return name, int(size)


def _from_function(
    source: str, *, batch_size: int, iterations: int, optimizer: str, precision: str
) -> JobFeatures:
    """Trace what ``module:function`` returns; it is called under the meta device.

    The function takes the batch size if it has a parameter, and returns ``(module, inputs)``.
    """
    module_name, _, function_name = source.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise GraphError(
            f"{source}: {error}; give module:function, importable from {Path.cwd()}"
        ) from error
    finally:
        sys.path.pop(0)
    import torch

    with torch.device("meta"):
        made: Any = function(batch_size) if function.__code__.co_argcount else function()
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], torch.nn.Module):
        raise GraphError(
            f"{source}: returned {type(made).__name__}; return (torch module, inputs), "
            "inputs being one tensor or a tuple of tensors"
        )
    module, inputs = made
    return job_features.from_module(
        module,
        inputs,
        iterations=iterations,
        optimizer=optimizer,
        precision=precision,
        name=function_name,
        family=function_name,
    )
