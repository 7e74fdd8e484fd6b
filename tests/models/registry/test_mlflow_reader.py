"""The registry is read without MLflow's client, with the client's results."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from presage.errors import RegistryError
from presage.models.registry.mlflow_connection import MlflowConnection
from presage.models.registry.mlflow_reader import MlflowReader, reading
from presage.models.registry.promotion_journal import read_journal
from presage.models.registry.registered_release import read_releases
from presage.models.registry.uri import MODEL
from tests.models.mlflow_server import served


def assert_reads_as_the_client(uri):
    """Compare everything that is read, after a version of another program was deleted."""
    reader = MlflowReader(uri, MODEL)
    with MlflowConnection(uri).connect("test") as client:
        foreign = client.create_model_version(MODEL, "s3://elsewhere/x", tags={"release_id": "x"})
        client.delete_model_version(MODEL, foreign.version)
        assert read_releases(reader) == read_releases(client)
        assert len(read_releases(reader)) == 2
        assert read_journal(reader) == read_journal(client)
        assert len(read_journal(reader)) == 1
        assert read_releases(MlflowReader(uri, "absent")) == []


def test_a_database_is_read_as_by_the_client(two):
    assert_reads_as_the_client(two.uri)


def test_a_server_is_read_as_by_the_client(two, tmp_path):
    with served(tmp_path / "registry-of-two") as uri:
        assert_reads_as_the_client(uri)


@pytest.mark.parametrize(
    "command",
    [("list",), ("show", "champion"), ("history",), ("list", "--json"), ("trained-on", "cpu-2")],
)
def test_commands_that_read_do_not_import_mlflow(two, command):
    code = (
        "import sys; from presage.__main__ import main; sys.argv[1:] = ['models', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'mlflow', 'pandas', 'torch', 'onnxruntime'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        env=os.environ | {"PRESAGE_REGISTRY": two.uri}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_database_without_tables_has_no_release(tmp_path):
    (tmp_path / "mlflow.db").touch()
    reader = MlflowReader(f"sqlite:///{tmp_path}/mlflow.db", MODEL)

    assert read_releases(reader) == []
    assert read_journal(reader) == []


def test_a_server_that_is_down_is_an_error_of_one_line(tmp_path):
    uri = "http://127.0.0.1:9"
    with (
        pytest.raises(RegistryError, match=r"cannot list releases \(\[Errno 111\] Connection"),
        reading(MlflowConnection(uri), "list releases") as reader,
    ):
        read_releases(reader)


def test_a_file_that_is_no_registry_is_an_error_of_one_line(tmp_path):
    (tmp_path / "notes.db").write_text("not a database, but long enough to be read as one " * 9)
    uri = f"sqlite:///{tmp_path}/notes.db"
    with (
        pytest.raises(RegistryError, match=r"not a database"),
        reading(MlflowConnection(uri), "list releases") as reader,
    ):
        read_releases(reader)
