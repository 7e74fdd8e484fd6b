"""Inputs that once found a fault: each is refused now, in one line that names its file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from presage.errors import InvalidJobError
from tests.fuzzing.readers import READERS

CORPUS = Path(__file__).with_name("corpus")
FILES = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", FILES, ids=[f"{path.parent.name}-{path.stem}" for path in FILES])
def test_inputs_that_once_failed_are_rejected_with_a_named_error(path, tmp_path):
    reader = READERS[path.relative_to(CORPUS).parts[0]]
    shutil.copy(path, tmp_path)

    with pytest.raises(reader.refusals) as caught:
        reader.read(tmp_path / path.name)

    said = str(caught.value)
    assert str(tmp_path) in said or isinstance(caught.value, InvalidJobError)
    assert "\n" not in said
    assert len(said) < 1000
    assert ";" in said  # the fix


@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_every_reader_accepts_its_seed_inputs(tmp_path, reader):
    for number, sample in enumerate(reader.seeds()):
        path = tmp_path / f"{number}{sample.suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(sample.content)
        reader.read(path)
