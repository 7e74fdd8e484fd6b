"""Reading of model files: limits on their size, and errors for malformed files.

Files come from users, and some are malicious.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from presage.errors import GraphError, one_line
from presage.system.files.user_file import read_regular

MAX_FILE_BYTES = 2**31  # limit of a protobuf message
MAX_NODES = 200_000  # after inlining functions; a large language model has 10,000
# Nodes visited by all rounds of shape inference, where each round visits all: half a minute.
MAX_NODE_VISITS = 2_000_000
MAX_NATIVE_S, MAX_NATIVE_BYTES = 30.0, 2 * 2**30  # limits of the process that runs ONNX's C++ code

# Exceptions observed in code that assumes a valid graph, for example from a node with too few
# inputs, an attribute of a wrong type, or a tensor whose sizes do not match its content.
MALFORMED = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip


@contextmanager
def graph_errors(path: Path) -> Iterator[None]:
    """Convert errors about the file at ``path`` in this block into a one-line GraphError."""
    try:
        yield
    except GraphError as error:
        raise GraphError(f"{path}: {one_line(str(error).removeprefix(f'{path}: '))}") from error
    except MALFORMED as error:
        raise GraphError(
            f"{path}: nodes, attributes and tensors are inconsistent ({type(error).__name__}: "
            f"{one_line(error)}); export the model again, or check it with its framework"
        ) from error


def read_file(path: Path) -> bytes:
    """Return the content of a model file, which must be a regular file.

    Raises
    ------
    GraphError
        The file cannot be read, or exceeds the size limit of a protobuf message.
    """
    try:
        return read_regular(path, MAX_FILE_BYTES - 1)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise GraphError(
                f"{path}: cannot be read ({error.strerror}); check the path"
            ) from error
    raise GraphError(
        f"{path}: larger than {MAX_FILE_BYTES >> 30} GiB, the limit of a protobuf message; "
        "export the model with its weights in separate files"
    )


def check_nodes(count: int, what: str) -> None:
    """Raise a GraphError for a graph with more operators than any model has."""
    if count > MAX_NODES:
        raise GraphError(
            f"{what} expands to more than {MAX_NODES} operators; remove functions that call each "
            "other so often"
        )
