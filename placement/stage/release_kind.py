"""Placement releases in the model registry, under a name of their own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from presage.models.registry.release_kind import RegistrableRelease, ReleaseKind
from presage.schedulers.policies.failures.learnt.placement_release import (
    MANIFEST,
    MODEL_FILE,
    load_placement_release,
)

FILES = (MANIFEST, MODEL_FILE)


@contextmanager
def stored_folder(release: RegistrableRelease) -> Iterator[Path]:
    """Yield a temporary folder with the files to store."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            shutil.copyfile(release.folder / name, Path(folder) / name)
        yield Path(folder)


PLACEMENT = ReleaseKind(
    "presage-placement", load_placement_release, lambda folder: FILES, stored_folder, MANIFEST
)
