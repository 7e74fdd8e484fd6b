"""What `make` installs is what the package says it needs."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_timm_that_make_installs_is_the_one_that_the_extra_names():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    apart = re.findall(r"^[^#\s].*$", (ROOT / "requirements-nodeps.lock").read_text(), re.MULTILINE)

    assert [pin for pin in apart if pin.startswith("timm")] == [
        pin for pin in extras["timm"] if pin.startswith("timm")
    ]
