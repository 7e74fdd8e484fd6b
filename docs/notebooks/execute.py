"""Execute notebooks and store their outputs, without times and versions that change every time.

Run ``python docs/notebooks/execute.py`` in the root of a checkout after a change of a notebook, or
of what it shows. It needs the extra ``notebooks``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
TIMEOUT_S = 3600  # of one cell


def execute(notebook: Path, folder: Path) -> Any:
    """Return a notebook with the outputs of its cells, which run in ``folder``.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        A cell raised an exception.
    """
    content = nbformat.read(notebook, as_version=4)
    NotebookClient(
        content,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        startup_timeout=TIMEOUT_S,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    content.metadata = nbformat.from_dict(METADATA)
    return content


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:] or sorted(FOLDER.glob("*.ipynb"))):
        nbformat.write(execute(path, FOLDER), path)
        print(path)
