"""The command line's own code: small functions, small folders, a file a command."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import presage

SOURCE = Path(presage.__file__).parent
# The other folders of the package are links, and code of their own.
FILES = [*SOURCE.glob("*.py"), *(SOURCE / "cli").rglob("*.py"), *(SOURCE / "system").rglob("*.py")]
MOST_LINES, MOST_FILES = 29, 15


def function_lines() -> list[int]:
    """Length of each function, its signature and docstring included."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_nineteen_of_twenty_functions_have_at_most_29_lines():
    assert statistics.quantiles(function_lines(), n=20)[-1] <= MOST_LINES


def test_no_folder_has_more_than_fifteen_modules():
    for folder in {path.parent for path in FILES if "cli" in path.parts}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= MOST_FILES, folder
