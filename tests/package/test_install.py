"""What `make` and CI install is what the package says it needs, each file of it by its hash."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = tuple(sorted(path.name for path in ROOT.glob("requirements*.lock")))
PIN = re.compile(r"^([a-z0-9-]+)(?:\[[a-z,-]+\])?==(\S+)", re.MULTILINE)


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, list[str]] = project["optional-dependencies"]
    return found


def pins(lock: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / lock).read_text()))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_file_has_a_version_and_hashes(lock):
    entries = re.split(r"^(?=[^\s#])", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]

    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9-]+(\[[a-z,-]+\])?==[^ ]+ ", entry)
        assert "--hash=sha256:" in entry


@pytest.mark.parametrize("package, extra", [("timm", "timm"), ("tritonclient", "triton")])
def test_what_is_installed_without_its_dependencies_is_what_the_extra_names(package, extra):
    (pinned,) = (pin.split("==")[1] for pin in extras()[extra] if pin.startswith(package))

    assert pins("requirements.lock")[package] == pinned


def test_both_builds_of_torch_have_the_version_that_the_extra_names():
    (pin,) = (pin for pin in extras()["profile"] if pin.startswith("torch=="))

    assert f"torch=={pins('requirements-torch.lock')['torch']}" == pin
    assert f"torch=={pins('requirements-torch-cpu.lock')['torch']}" == f"{pin}+cpu"
    assert "torch" not in pins("requirements.lock")


def test_ci_has_the_versions_that_make_installs():
    made, ci = pins("requirements.lock"), pins("requirements-ci.lock")

    assert {name: ci[name] for name in made.keys() & ci.keys()} == {
        name: made[name] for name in made.keys() & ci.keys()
    }
