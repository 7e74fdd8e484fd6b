"""A model's file: what reading it may cost, and what is said of one that cannot be understood.

Files come from users, and some are made to do harm.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from presage.errors import GraphError, one_line
from presage.system.user_file import read_regular

MOST_FILE_BYTES = 2**31  # what a protobuf message may be
MOST_NODES = 200_000  # functions put in the place of calls; a large language model has 10,000
# Of nodes by all rounds of shape inference, each of which looks at every node: half a minute of it.
MOST_NODE_VISITS = 2_000_000
MOST_NATIVE_S, MOST_NATIVE_BYTES = 30.0, 2 * 2**30  # of ONNX's C++ code, in a process of its own

# What a node with too few inputs, an attribute of another type, a tensor of other sizes than its
# content and the like were seen to raise in code that takes a graph for a sound one.
MALFORMED = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What goes wrong with the file at ``path`` in this block is a GraphError of one line."""
    try:
        yield
    except GraphError as error:
        raise GraphError(f"{path}: {one_line(str(error).removeprefix(f'{path}: '))}") from error
    except MALFORMED as error:
        raise GraphError(
            f"{path}: nodes, attributes and tensors do not fit together ({type(error).__name__}: "
            f"{one_line(error)}); export it again, or check it with its own framework"
        ) from error


def read_file(path: Path) -> bytes:
    """Return the content of a model's file, which is a regular one.

    Raises
    ------
    GraphError
        It cannot be read, or is larger than a model's file can be.
    """
    try:
        return read_regular(path, MOST_FILE_BYTES - 1)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise GraphError(
                f"{path}: cannot be read ({error.strerror}); check the path"
            ) from error
    raise GraphError(
        f"{path}: larger than the {MOST_FILE_BYTES >> 30} GiB that a protobuf message can have; "
        "export the model with its weights in files of their own"
    )


def check_nodes(count: int, what: str) -> None:
    """Refuse a graph of more operators than any model has."""
    if count > MOST_NODES:
        raise GraphError(
            f"{what} unfolds to more than {MOST_NODES} operators; give a graph without functions "
            "that call each other so often"
        )
