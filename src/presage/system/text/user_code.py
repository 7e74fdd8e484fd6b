"""Place and description of errors that are raised by a user's code."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from presage.errors import one_line


def describe_exception(error: BaseException) -> str:
    """Return type, message and place of an error, in one line."""
    message = one_line(error.msg if isinstance(error, SyntaxError) else error)
    return f"{type(error).__name__}{f': {message}' if message else ''}{place_of(error)}"


def place_of(error: BaseException) -> str:
    """Return file and line of the innermost call outside of libraries and of Presage.

    The text begins with a space, as in " (my_module.py, line 3)". It is "" if there is no such
    call.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({_short(error.filename)}, line {error.lineno})"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *_libraries())):
            return f" ({_short(frame.filename)}, line {frame.lineno})"
    return ""


def _libraries() -> tuple[str, ...]:
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return (*folders, str(Path(__file__).parents[2]))


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
