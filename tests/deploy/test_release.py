"""The release program: equal bytes for equal commits, and tags that match their version."""

from __future__ import annotations

import gzip
import hashlib
import os
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT
from tests.package.installed import FILES, SOURCES

PROGRAM = ROOT / ".ci/release.py"
RELEASE = runpy.run_path(str(PROGRAM))


def write_sdist(path: Path, names: list[str], *, time: int, mode: int) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            source = path.parent / "file"
            source.write_text(name)
            source.chmod(mode)
            os.utime(source, (time, time))
            archive.add(source, name)
    return path


def test_a_normalized_sdist_does_not_depend_on_times_owners_modes_and_order(tmp_path):
    one = write_sdist(tmp_path / "one.tar.gz", ["p/b", "p/a"], time=1_000_000_000, mode=0o600)
    other = write_sdist(tmp_path / "other.tar.gz", ["p/a", "p/b"], time=1_500_000_000, mode=0o664)

    for path in (one, other):
        RELEASE["normalize"](path, 1_700_000_000)

    assert one.read_bytes() == other.read_bytes()
    with tarfile.open(one) as archive:
        assert [(m.name, m.mode, m.mtime, m.uid) for m in archive] == [
            ("p/a", 0o644, 1_700_000_000, 0),
            ("p/b", 0o644, 1_700_000_000, 0),
        ]
        content = archive.extractfile("p/b")
        assert content is not None
        assert content.read() == b"p/b"
    assert gzip.decompress(one.read_bytes())


def test_a_program_stays_executable_in_a_normalized_sdist(tmp_path):
    path = write_sdist(tmp_path / "one.tar.gz", ["p/run"], time=1, mode=0o700)

    RELEASE["normalize"](path, 2)

    with tarfile.open(path) as archive:
        assert [m.mode for m in archive] == [0o755]


def test_a_release_is_built_from_the_sources_of_the_wheel():
    assert set(RELEASE["SOURCES"]) == {*SOURCES, *FILES}


@pytest.mark.parametrize(
    ("tag", "reason"),
    [("v9.9.9", "pyproject.toml has version"), ("0.1.0", "tag it v"), ("v0.1.0", "is not HEAD's")],
)
def test_a_tag_that_is_not_of_this_commit_and_version_is_refused(monkeypatch, tag, reason):
    check_tag = RELEASE["check_tag"]
    monkeypatch.setitem(check_tag.__globals__, "_git", lambda *_: "")  # a commit without tags

    with pytest.raises(RELEASE["ReleaseError"], match=reason):
        check_tag(tag)


def test_two_releases_of_a_commit_have_the_same_bytes(tmp_path):
    listed = []
    for name, umask in (("one", 0o022), ("other", 0o077)):
        done = subprocess.run(
            [sys.executable, PROGRAM, tmp_path / name], capture_output=True, text=True,
            check=False, cwd="/", umask=umask,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        listed.append(done.stdout)

    assert listed[0] == listed[1]
    for line in (tmp_path / "one/SHA256SUMS").read_text().splitlines():
        digest, file = line.split()
        assert hashlib.sha256((tmp_path / "other" / file).read_bytes()).hexdigest() == digest
