"""The notebooks of docs/notebooks: they run, and their stored outputs are fit to be shown."""

from __future__ import annotations

import json
import os
import platform
import re
import runpy
import shutil
from importlib.util import find_spec
from unittest import mock

import pytest

from tests.support.tutorials import ROOT

FOLDER = ROOT / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST_BYTES = 300_000
# What shows where a notebook was executed: `/home/...` in a warning, a temporary file.
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/<])/(?:home|root|tmp|usr|var|opt|work|Users|private)/")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
needs_nbclient = pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="nbclient is not installed: pip install presage[notebooks]",
)


def code_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def outputs(path):
    return [output for cell in code_cells(path) for output in cell["outputs"]]


def texts(output):
    """Return the texts of an output; pictures have none."""
    data = {"text": output.get("text", ""), **output.get("data", {})}
    return ["".join(text) for name, text in data.items() if not name.startswith("image/")]


def test_each_persona_has_a_notebook():
    assert [path.stem for path in NOTEBOOKS] == [
        "share_gpus", "train_and_promote", "write_a_policy"
    ]  # fmt: skip


@each_notebook
def test_all_cells_were_executed_once_in_their_order(path):
    counts = [cell["execution_count"] for cell in code_cells(path)]

    assert counts == list(range(1, len(counts) + 1))


@each_notebook
def test_pictures_and_tables_are_stored_without_errors_and_warnings(path):
    stored = outputs(path)
    kinds = {kind for output in stored for kind in output.get("data", {})}

    assert {"image/png", "text/html"} <= kinds
    assert [output["output_type"] for output in stored if output["output_type"] == "error"] == []
    assert [texts(output) for output in stored if output.get("name") == "stderr"] == []


@each_notebook
def test_outputs_do_not_show_where_the_notebook_was_executed(path):
    for output in outputs(path):
        for text in texts(output):
            assert not ABSOLUTE_PATH.search(text), text
            assert platform.node() not in text.split(), text


@each_notebook
def test_only_what_a_reader_needs_is_stored(path):
    content = json.loads(path.read_text())

    assert path.stat().st_size <= LARGEST_BYTES
    assert content["metadata"]["language_info"] == {"name": "python"}  # no version
    assert all(cell["metadata"] == {} for cell in content["cells"])


@each_notebook
def test_links_lead_somewhere(path):
    cells = json.loads(path.read_text())["cells"]
    prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#:]+)[^)]*\)", prose)

    assert links
    for link in links:
        assert (FOLDER / link).exists(), link


@needs_nbclient
@each_notebook
@pytest.mark.timeout(1800)
def test_a_notebook_runs_in_a_fresh_copy(path, tmp_path):
    execute = runpy.run_path(str(FOLDER / "execute.py"))["execute"]
    for name in ("examples", "data", "params.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    folder = tmp_path / "docs/notebooks"
    folder.mkdir(parents=True)
    copy = shutil.copy(path, folder)
    source = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)

    with mock.patch.dict(os.environ, PYTHONPATH=source):
        done = execute(type(path)(copy), folder)

    cells = [cell for cell in done.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert list(folder.glob("[!.]*")) == [folder / path.name]  # it leaves no files
