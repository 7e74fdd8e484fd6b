from collections.abc import Callable
from typing import Any

def operator_reader(
    classes: tuple[tuple[str, str, str], ...],
    precisions: tuple[str, ...],
    formats: tuple[str, ...],
    sample_s: float,
    byte_s: float,
    /,
) -> Any: ...
def read_operators(reader: Any, ops: list[Any], /) -> tuple[bytes, bytes] | None: ...
def read_jobs(
    reader: Any,
    request: bytes,
    release: Callable[[str], float | None],
    max_text: int,
    max_op_rows: int,
    /,
) -> tuple[bytes, tuple[str, ...], bytes, bytes, bytes, bytes, bytes] | None: ...
def sum_operators(*args: Any) -> None: ...
def visit_operators(*args: Any) -> None: ...
def divide_columns(*args: Any) -> None: ...
