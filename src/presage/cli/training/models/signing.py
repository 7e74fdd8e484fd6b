"""``presage models keygen``, ``sign`` and ``verify``: signed releases."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.training.models.options import (
    RefOrFolder,
    is_folder,
    loaded_release,
    open_registry,
)
from presage.cli.training.options import RegistryUri
from presage.system.text.terminal import say


@command(examples="presage models keygen release-key")
def keygen(
    key: Annotated[
        Path,
        typer.Argument(metavar="KEY", help="Private key to write; KEY.pub is the public key."),
    ],
) -> None:
    """Generate a key pair: the private key signs releases, the public key verifies them."""
    from presage.models.release.signature import generate_key

    public = generate_key(key)
    say(f"private key: {key} (keep it secret); public key: {public} (for servers)")


@command(examples="presage models sign champion --key release-key")
def sign(
    ref: RefOrFolder,
    key: Annotated[
        Path, typer.Option(metavar="KEY", help="Private key made by `presage models keygen`.")
    ],
    registry: RegistryUri = "",
) -> None:
    """Sign a release, for servers that load signed releases only (serve --trusted-key)."""
    from presage.models.release.release import SIGNATURE
    from presage.models.release.signature import sign_release

    if is_folder(ref):
        name = sign_release(Path(ref), key)
        say(f"{Path(ref) / SIGNATURE}: signed by key {name}")
        return
    opened = open_registry(registry)
    found = opened.resolve(ref)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "release"
        opened.download(found.version, folder)
        name = sign_release(folder, key)
        opened.attach_signature(found.version, folder / SIGNATURE)
    say(f"release {found.release_id} (version {found.version}): signed by key {name}")


@command(examples="presage models verify data/release --trusted-key release-key.pub")
def verify(
    ref: RefOrFolder,
    trusted_key: Annotated[
        list[Path],
        typer.Option(metavar="PEM", help="Trusted public key. Repeat for several keys."),
    ],
    registry: RegistryUri = "",
) -> None:
    """Verify that a trusted key signed a release; the exit status is 1 otherwise."""
    from presage.models.release.signature import TrustedKeys

    keys = TrustedKeys(trusted_key)
    with loaded_release(ref, registry) as release:
        name = keys.check(release)
    say(f"release {release.release_id}: signed by key {name}")
