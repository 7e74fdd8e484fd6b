"""Write an SBOM of the installed packages, and reject licences that are not allowed.

Reads installed metadata, requirements*.lock and .ci/licences.toml, and uses no network. It reads
what packages declare: neither texts of licences, nor libraries inside a wheel.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from license_expression import ExpressionError, get_spdx_licensing
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NOT_LOCKED = {"pip", "presage"}  # pip comes with Python
TEST_EXTRAS = {"audit", "browser", "dev", "notebooks", "shared-registry", "triton"}
UNINFORMATIVE = {"OSI Approved", "DFSG approved"}
SPDX = get_spdx_licensing()


@dataclass(frozen=True)
class Rules:
    """Contents of licences.toml; exceptions by name of package."""

    allowed: frozenset[str]
    texts: Mapping[str, str]
    exceptions: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Rules:
        """Read licences.toml."""
        table = tomllib.loads(path.read_text())
        exceptions = {name: entry for entry in table["exceptions"] for name in entry["packages"]}
        return cls(frozenset(table["allowed"]), table["texts"], exceptions)

    def spdx(self, declared: str) -> str:
        """Return the SPDX expression of a declared text, or the text itself if none is known."""
        return self.texts.get(declared.lower(), declared)

    def licence(self, name: str, declared: list[str]) -> str:
        """Return the licence that the SBOM names: the exception's, or the first one declared."""
        return str(self.exceptions.get(name, {}).get("licence", self.spdx(declared[0])))

    def allows(self, name: str, declared: str) -> bool:
        """Return whether a package may declare this licence."""
        if declared in self.exceptions.get(name, {}).get("declared", ()):
            return True
        try:
            return self._allows(SPDX.parse(self.spdx(declared)))
        except ExpressionError:
            return False

    def _allows(self, node: Any) -> bool:
        if isinstance(node, SPDX.AND):
            return all(map(self._allows, node.args))
        if isinstance(node, SPDX.OR):
            return any(map(self._allows, node.args))
        return node.render() in self.allowed


def declared_licences(package: Distribution) -> list[str]:
    """Return License-Expression (PEP 639), else the License field and the licence classifiers."""

    def values(field: str) -> list[str]:
        return [value.strip() for value in package.metadata.get_all(field) or [] if value.strip()]

    classifiers = [line.split(" :: ") for line in values("Classifier")]
    named = [parts[-1] for parts in classifiers if parts[0] == "License"]
    # A field of many lines is the text of a licence; only a classifier or exception can name it.
    field = [value for value in values("License") if "\n" not in value]
    found = values("License-Expression") or field + [n for n in named if n not in UNINFORMATIVE]
    return found or ["nothing"]


def locked_hashes(locks: Iterable[Path]) -> dict[tuple[str, str], list[str]]:
    """Return the sha256 of each file of a package, by name and version, from lock files."""
    entries = [e for lock in locks for e in re.split(r"^(?=\w)", lock.read_text(), flags=re.M)]
    pins = [(re.match(r"([\w.-]+)(?:\[.*?\])?==(\S+)", entry), entry) for entry in entries]
    return {
        (canonicalize_name(pin[1]), pin[2]): re.findall(r"--hash=sha256:(\w{64})", entry)
        for pin, entry in pins
        if pin
    }


def dependencies(
    project: Mapping[str, Any], installed: Mapping[str, Distribution], *, tests: bool
) -> dict[str, set[str]]:
    """Return the dependencies of each installed package that Presage or its extras lead to.

    Without ``tests``, the extras that only tests and development use are left out.
    """
    extras = project["optional-dependencies"].items()
    texts = [text for extra, texts in extras if tests or extra not in TEST_EXTRAS for text in texts]
    pending = [(project["name"], "", text) for text in project["dependencies"] + texts]
    graph: dict[str, set[str]] = defaultdict(set)
    done = set()
    while pending:
        parent, extra, text = step = pending.pop()
        needed = Requirement(text)
        name = canonicalize_name(needed.name)
        is_needed = needed.marker is None or needed.marker.evaluate({"extra": extra})
        if step not in done and is_needed and name in installed:
            done.add(step)
            graph[parent].add(name)
            wanted = installed[name].requires or []
            pending += [(name, each, text) for each in ("", *needed.extras) for text in wanted]
    return graph


def component(
    name: str, version: str, licence: str, hashes: Iterable[str] = (), *, runtime: bool = True
) -> Component:
    """Return the SBOM's entry of a package; a lock file has hashes of files for all machines."""
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=name,
        purl=PackageURL("pypi", None, name, version),
        scope=ComponentScope.REQUIRED if runtime else ComponentScope.EXCLUDED,
        licenses=[LicenseFactory().make_from_string(licence)],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=content) for content in hashes],
    )


def problems(package: str, refused: list[str], *, is_locked: bool) -> list[str]:
    """Return a line for each reason to reject a package."""
    lines = []
    if not is_locked:
        lines.append(
            f"{package} is in no lock file; uninstall it, or add it to pyproject.toml and run "
            ".ci/lock"
        )
    if refused:
        lines.append(
            f"{package} declares {' and '.join(map(repr, refused))} as its licence, which is not "
            "allowed; remove the package, or add to .ci/licences.toml its licence, or an exception "
            "for the package with its reason"
        )
    return lines


def report(root: Path, installed: Mapping[str, Distribution]) -> list[str]:
    """Write build/sbom.json and build/licences.txt; return a line for each problem."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    rules = Rules.read(root / ".ci" / "licences.toml")
    hashes = locked_hashes(root.glob("requirements*.lock"))
    runtime = set().union(*dependencies(project, installed, tests=False).values())
    bom, lines, rejected = Bom(), [], []
    bom.metadata.tools.components.add(this_component())
    bom.metadata.component = component(project["name"], project["version"], project["license"])
    parts = {project["name"]: bom.metadata.component}
    for name, package in sorted(installed.items()):
        declared, key = declared_licences(package), (name, package.version)
        licence, is_runtime = rules.licence(name, declared), name in runtime
        parts[name] = component(*key, licence, hashes.get(key, ()), runtime=is_runtime)
        bom.components.add(parts[name])
        use = "runtime" if is_runtime else "development"
        lines.append(f"{name} {package.version} ({use}): {licence}\n")
        refused = [text for text in declared if not rules.allows(name, text)]
        rejected += problems(f"{name} {package.version}", refused, is_locked=key in hashes)
    for parent, needed in dependencies(project, installed, tests=True).items():
        bom.register_dependency(parts[parent], [parts[name] for name in needed])
    build = root / "build"
    build.mkdir(exist_ok=True)
    (build / "licences.txt").write_text("".join(lines))
    JsonV1Dot6(bom).output_to_file(str(build / "sbom.json"), allow_overwrite=True, indent=2)
    return rejected


def main() -> None:
    """Check the packages of this Python, or those in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="Checkout.")
    parser.add_argument("--packages", help="Folder of packages (default: this Python's).")
    args = parser.parse_args()
    found = list(distributions(path=[args.packages] if args.packages else sys.path))
    # Of several packages of one name, Python imports the first.
    installed = {str(canonicalize_name(package.name)): package for package in reversed(found)}
    if rejected := report(args.root, {n: p for n, p in installed.items() if n not in NOT_LOCKED}):
        sys.exit("\n".join(f"licences: {line}" for line in rejected))


if __name__ == "__main__":
    main()
