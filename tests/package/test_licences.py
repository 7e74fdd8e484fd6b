"""Licences of installed packages are allowed ones, and the SBOM has the hashes of every package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.spdx import is_expression, is_supported_id
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[2]
RULES = tomllib.loads((ROOT / ".ci" / "licences.toml").read_text())
LOCKED = re.compile(r"^([a-z0-9-]+)(?:\[[a-z,-]+\])?==\S+", re.MULTILINE)
HASH = "0123456789abcdef" * 4
UNSTATED = "declares 'nothing' as its licence"


class Checkout:
    """Folder with the rules of this checkout, and lock files and packages of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.packages = folder / "packages"
        (self.root / ".ci").mkdir(parents=True)
        self.packages.mkdir()
        shutil.copy(ROOT / "pyproject.toml", self.root)
        shutil.copy(ROOT / ".ci" / "licences.toml", self.root / ".ci")
        self.install("numpy", "License-Expression: MIT")  # what Presage itself depends on

    def install(self, name: str, *fields: str, version: str = "1.0") -> None:
        folder = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *fields]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")

    def lock(self, *pins: str) -> None:
        entries = [f"{pin} \\\n    --hash=sha256:{HASH}\n" for pin in ("numpy==1.0", *pins)]
        (self.root / "requirements.lock").write_text("# Written by .ci/lock.\n" + "".join(entries))

    def check(self, *options: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ROOT / ".ci" / "licences.py", "--root", self.root, *options]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)

    def rejected(self) -> list[str]:
        """Lines of a check of the test's own packages."""
        done = self.check("--packages", self.packages)
        assert (done.returncode == 0) == (done.stderr == ""), done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr.splitlines()

    def sbom(self) -> dict:
        sbom: dict = json.loads((self.root / "build" / "sbom.json").read_text())
        return sbom

    def components(self) -> dict[str, dict]:
        return {part["name"]: part for part in self.sbom()["components"]}


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def licensed(*licences: str) -> list[str]:
    """Classifiers, as packages before PEP 639 have them."""
    return [f"Classifier: License :: OSI Approved :: {licence}" for licence in licences]


@pytest.mark.parametrize(
    "fields, named",
    [
        (["License-Expression: GPL-3.0-only"], "'GPL-3.0-only'"),
        (["License-Expression: SSPL-1.0"], "'SSPL-1.0'"),
        (["License-Expression: BUSL-1.1"], "'BUSL-1.1'"),
        (["License-Expression: MIT AND AGPL-3.0-or-later"], "'MIT AND AGPL-3.0-or-later'"),
        (["License-Expression: GPL-3.0-only OR SSPL-1.0"], "'GPL-3.0-only OR SSPL-1.0'"),
        (["License-Expression: Apache-2.0 WITH Made-Up-exception"], "Made-Up-exception"),
        (["License: GPLv3"], "'GPLv3'"),
        (["License: see (the file"], "'see (the file'"),
        (["License: MIT", *licensed("GNU General Public License v3 (GPLv3)")], "(GPLv3)'"),
        (licensed("MIT License", "GNU Affero General Public License v3"), "Affero"),
        (["Classifier: License :: Other/Proprietary License"], "'Other/Proprietary License'"),
        ([], UNSTATED),
        (["License:"], UNSTATED),
        (["Classifier: License :: OSI Approved"], UNSTATED),
        (["License: Copyright by A. Nother", "        All rights reserved"], UNSTATED),
    ],
)
def test_a_package_whose_licence_is_not_allowed_is_rejected_in_one_line(checkout, fields, named):
    checkout.install("sneaky", *fields)
    checkout.lock("sneaky==1.0")

    (line,) = checkout.rejected()

    assert line.startswith("licences: sneaky 1.0 declares '")
    assert named in line
    assert "add to .ci/licences.toml its licence, or an exception" in line


@pytest.mark.parametrize(
    "fields, licence",
    [
        (["License-Expression: MIT"], "MIT"),
        (["License-Expression: GPL-3.0-only OR MIT"], "GPL-3.0-only OR MIT"),
        (["License-Expression: MPL-2.0 AND (MIT OR SSPL-1.0)"], "MPL-2.0 AND (MIT OR SSPL-1.0)"),
        (["License: Apache License, Version 2.0"], "Apache-2.0"),
        (["License: BSD", *licensed("BSD License")], "LicenseRef-BSD"),
        (licensed("Mozilla Public License 2.0 (MPL 2.0)"), "MPL-2.0"),
        (["License: Copyright", "        whole text", *licensed("MIT License")], "MIT"),
    ],
)
def test_the_sbom_names_an_allowed_licence_in_the_words_of_spdx(checkout, fields, licence):
    checkout.install("friendly", *fields)
    checkout.lock("friendly==1.0")

    assert checkout.rejected() == []
    (entry,) = checkout.components()["friendly"]["licenses"]
    assert licence in (entry.get("expression"), *entry.get("license", {}).values())


@pytest.mark.parametrize("pin", ["other==1.0", "stray==1.1"])
def test_a_package_or_version_that_no_lock_file_has_is_rejected(checkout, pin):
    checkout.install("stray", "License-Expression: MIT")
    checkout.lock(pin)

    (line,) = checkout.rejected()

    assert line.startswith("licences: stray 1.0 is in no lock file; uninstall it")


def test_a_licence_that_is_added_to_the_file_is_allowed(checkout):
    checkout.install("sneaky", "License-Expression: GPL-3.0-only")
    checkout.lock("sneaky==1.0")
    rules = checkout.root / ".ci" / "licences.toml"

    rules.write_text(rules.read_text().replace('"MIT",', '"MIT",\n    "GPL-3.0-only",', 1))

    assert checkout.rejected() == []


def test_an_exception_holds_for_its_package_and_its_declared_licence_only(checkout):
    checkout.install("pygit2", "License: GPLv2 with linking exception")
    checkout.install("nvidia-cublas", "License-Expression: LicenseRef-NVIDIA-Proprietary")
    checkout.install("nvidia-new", "License-Expression: LicenseRef-NVIDIA-Proprietary")
    checkout.install("grandalf", "License-Expression: GPL-3.0-only")
    checkout.lock("pygit2==1.0", "nvidia-cublas==1.0", "nvidia-new==1.0", "grandalf==1.0")

    lines = checkout.rejected()

    assert [line.split()[1] for line in lines] == ["grandalf", "nvidia-new"]
    (licence,) = checkout.components()["pygit2"]["licenses"]
    assert licence["expression"] == "GPL-2.0-only WITH GCC-exception-2.0"


def test_the_sbom_tells_runtime_from_development_and_what_needs_what(checkout):
    mit = "License-Expression: MIT"
    checkout.install("grpcio", mit, "Requires-Dist: typing-extensions~=4.12")
    checkout.install("typing-extensions", mit)
    checkout.install("pytest", mit, "Requires-Dist: pluggy", "Requires-Dist: ply; extra == 'x'")
    checkout.install("pluggy", mit)
    checkout.install("ply", mit, version="2.0+cpu")
    checkout.lock(*(f"{name}==1.0" for name in ("grpcio", "typing-extensions", "pytest", "pluggy")))
    with (checkout.root / "requirements.lock").open("a") as lock:
        lock.write(f"ply[a,b]==2.0+cpu ; sys_platform == 'linux' \\\n    --hash=sha256:{HASH}\n")

    assert checkout.rejected() == []
    parts = checkout.components()
    assert {name for name, part in parts.items() if part["scope"] == "required"} == {
        "grpcio",
        "numpy",
        "typing-extensions",
    }
    needs = {entry["ref"]: entry.get("dependsOn", []) for entry in checkout.sbom()["dependencies"]}
    assert needs["presage"] == ["grpcio", "numpy", "pytest"]
    assert needs["grpcio"] == ["typing-extensions"]
    assert needs["pytest"] == ["pluggy"]
    assert parts["ply"]["purl"] == "pkg:pypi/ply@2.0%2Bcpu"
    assert parts["ply"]["hashes"] == [{"alg": "SHA-256", "content": HASH}]


def test_every_locked_package_of_this_environment_is_allowed_and_described(checkout):
    for lock in ROOT.glob("requirements*.lock"):
        shutil.copy(lock, checkout.root)

    lines = checkout.check().stderr.splitlines()

    # CI, which installs the lock files only, runs the check itself and accepts no line.
    strays = {line.split()[1] for line in lines if "is in no lock file" in line}
    assert [line for line in lines if "is in no lock file" not in line] == []
    text = (checkout.root / "build" / "sbom.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    parts = checkout.components()
    assert len(parts) > 150
    for name in parts.keys() - strays:
        assert all(parts[name][key] for key in ("version", "purl", "licenses", "hashes"))
    assert not [path for path in (ROOT, Path(sys.prefix), Path.home()) if str(path) in text]


def test_every_exception_has_a_reason_a_licence_and_a_locked_package():
    locked = {
        n for lock in ROOT.glob("requirements*.lock") for n in LOCKED.findall(lock.read_text())
    }

    for exception in RULES["exceptions"]:
        assert set(exception["packages"]) <= locked
        assert exception["declared"]
        assert len(exception["reason"]) > 20
        assert is_expression(exception["licence"]) or "NVIDIA" in exception["licence"]


def test_every_allowed_licence_is_one_of_spdx():
    named = {*RULES["allowed"], *RULES["texts"].values()}

    for licence in named - {"LicenseRef-BSD"}:
        assert is_supported_id(licence) or is_expression(licence)
    assert named == set(RULES["allowed"])
    assert all(text == text.lower() for text in RULES["texts"])
