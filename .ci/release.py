"""Build the wheel and the source distribution of a commit, reproducibly, and check them.

Usage: python .ci/release.py [OUT] [--tag TAG]

Both are built twice, in different folders and at different times, and must be equal byte for byte.
The wheel is built from the source distribution, so that the latter is complete. ``twine check``
runs if twine is installed. OUT (default: dist) then has both, and SHA256SUMS.

Only files of the commit HEAD are built, with its time as SOURCE_DATE_EPOCH. With ``--tag``, the tag
must be HEAD's, its version that of pyproject.toml, and CHANGELOG.md must have a section for it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What the distributions are built from, as in deploy/Containerfile.
SOURCES = (
    "pyproject.toml", "README.md", "LICENSE", "src", "collectives", "features", "models",
    "pipelines", "placement", "schedulers", "serving", "training", "data/pretrained",
)  # fmt: skip
UMASK = 0o022  # modes of files in a wheel depend on it
BUILD = "import sys, setuptools.build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"


class ReleaseError(Exception):
    """Reason why a release cannot be made, in one line."""


def build(commit: str, work: Path) -> list[Path]:
    """Return the source distribution and the wheel of a commit, built in an empty folder.

    Raises
    ------
    ReleaseError
        setuptools failed.
    """
    epoch = int(_git("log", "-1", "--format=%ct", commit))
    previous = os.umask(UMASK)
    try:
        sources, out = work / "sources", work / "out"
        out.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "archive", commit, *SOURCES], cwd=ROOT, capture_output=True, check=True
        ).stdout
        _extract(archive, sources)
        sdist = _build("build_sdist", sources, out, epoch)
        normalize(sdist, epoch)
        _extract(gzip.decompress(sdist.read_bytes()), work / "unpacked")
        (unpacked,) = (work / "unpacked").iterdir()
        return [sdist, _build("build_wheel", unpacked, out, epoch)]
    finally:
        os.umask(previous)


def normalize(sdist: Path, epoch: int) -> None:
    """Rewrite a source distribution in place: sorted, with one time, no owner and fixed modes.

    Parameters
    ----------
    sdist : Path
        A file .tar.gz, as setuptools writes it: with the times and modes of files on disk.
    epoch : int
        Time of all files, in seconds since 1970.
    """
    packed = io.BytesIO()
    with (
        tarfile.open(sdist) as before,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            content = before.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid = epoch, 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            after.addfile(member, content)
    with (
        sdist.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=epoch) as file,
    ):
        file.write(packed.getvalue())


def check_tag(tag: str) -> None:
    """Raise ReleaseError unless HEAD, pyproject.toml and CHANGELOG.md are of a tag's version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if tag != f"v{version}":
        raise ReleaseError(f"tag {tag!r}: pyproject.toml has version {version}; tag it v{version}")
    if tag not in _git("tag", "--points-at", "HEAD").split():
        raise ReleaseError(
            f"tag {tag!r} is not HEAD's; check it out, or create it: git tag -s {tag}"
        )
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(heading, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'; add it")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(argv: list[str] | None = None) -> int:
    """Build twice, compare, check, and copy to OUT; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "dist", metavar="OUT")
    parser.add_argument("--tag", help="Tag of the release, such as v0.1.0.")
    args = parser.parse_args(argv)
    try:
        if args.tag:
            check_tag(args.tag)
        _release(args.out)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _release(out: Path) -> None:
    if _git("status", "--porcelain", "--", *SOURCES):
        sys.stderr.write("warning: changes that are not committed are not in the release\n")
    with tempfile.TemporaryDirectory(prefix="presage-release-") as folder:
        first, second = (build("HEAD", Path(folder) / name) for name in ("a", "b"))
        for one, other in zip(first, second, strict=True):
            if digest(one) != digest(other):
                raise ReleaseError(f"{one.name} is not reproducible: two builds differ")
        _check_metadata(first)
        out.mkdir(parents=True, exist_ok=True)
        lines = [f"{digest(path)}  {path.name}\n" for path in first]
        for path in first:
            shutil.copyfile(path, out / path.name)
        (out / "SHA256SUMS").write_text("".join(lines))
        sys.stdout.write("".join(lines))


def _check_metadata(paths: list[Path]) -> None:
    twine = shutil.which("twine")
    if twine is None:
        sys.stderr.write("twine is not installed: metadata was not checked\n")
        return
    subprocess.run([twine, "check", "--strict", *paths], check=True, stdout=sys.stderr)


def _build(what: str, sources: Path, out: Path, epoch: int) -> Path:
    before = set(out.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(out)],
        cwd=sources,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{what} of setuptools failed: {done.stderr[-2000:]}")
    (made,) = set(out.iterdir()) - before
    return made


def _extract(archive: bytes, to: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(to, filter="tar")  # of git, or made by this program


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
