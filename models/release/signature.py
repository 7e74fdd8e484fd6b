"""Detached Ed25519 signatures of releases, which prove their origin.

The signature is over the bytes of ``release.json``, which has the sha256 of every other file. It is
a file of 64 raw bytes next to the manifest, so other tools can verify it too::

    openssl pkeyutl -verify -pubin -inkey KEY.pub -rawin -in release.json -sigfile release.json.sig

This module needs the package ``cryptography`` (``presage[sign]``). A server imports it only if
trusted keys are configured.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from presage.errors import ConfigError, ReleaseError
from presage.models.release.release import MANIFEST, SIGNATURE, Release, load_release
from presage.system.files.atomic_file import write_new

KEY_ID_CHARACTERS = 16
_MAX_KEY_BYTES = 64 * 1024
_GROUP_OR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def generate_key(path: Path) -> Path:
    """Write a new private key, readable only by its owner, and its public key as ``PATH.pub``.

    Returns
    -------
    Path
        File of the public key, for the option ``--trusted-key`` of servers.

    Raises
    ------
    ConfigError
        One of the two files exists or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    public = path.with_name(f"{path.name}.pub")
    private_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    if public.exists():  # before the private key is written
        raise ConfigError(f"{public}: the file exists; choose another name")
    _write_new(path, private_pem, mode=0o600)
    _write_new(public, _public_pem(key.public_key()), mode=0o644)
    return public


def sign_release(folder: Path, key: Path) -> str:
    """Sign the release at ``folder``, replacing any signature; return the id of the key.

    Raises
    ------
    ConfigError
        The file is not an Ed25519 private key, or other users may read it.
    ReleaseError
        The release is corrupt, or the signature cannot be written.
    """
    private = _read_private_key(key)
    load_release(folder)  # never sign a corrupt release
    signature = private.sign((folder / MANIFEST).read_bytes())
    partial = folder / f".{SIGNATURE}.{secrets.token_hex(4)}"
    try:
        partial.write_bytes(signature)
        partial.replace(folder / SIGNATURE)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ReleaseError(
            f"{folder / SIGNATURE}: cannot be written ({error.strerror}); make the folder writable"
        ) from error
    return key_id(private.public_key())


class TrustedKeys:
    """Public keys whose signatures are accepted.

    Parameters
    ----------
    paths : sequence of Path
        PEM files, as :func:`generate_key` writes them.

    Raises
    ------
    ConfigError
        A file cannot be read or is not an Ed25519 public key.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._keys: Mapping[str, Ed25519PublicKey] = {
            key_id(key): key for key in map(_read_public_key, paths)
        }

    def check(self, release: Release) -> str:
        """Return the id of the key that signed a release.

        The manifest that is verified is the one that was loaded: a folder that was replaced since
        is rejected.

        Raises
        ------
        ReleaseError
            The release is not signed, is not signed by a trusted key, or was changed since.
        """
        path = release.folder / SIGNATURE
        try:
            signature, manifest = path.read_bytes(), (release.folder / MANIFEST).read_bytes()
        except OSError as error:
            raise ReleaseError(
                f"{release.folder}: release {release.release_id} is not signed ({path.name}: "
                f"{error.strerror}); sign it with `presage models sign {release.release_id}`, or "
                "`presage models sign DIR` if it is in no registry"
            ) from error
        for name, key in self._keys.items():
            if _is_signed(key, signature, manifest) and json.loads(manifest) == release.manifest:
                return name
        raise ReleaseError(
            f"{release.folder}: the signature of release {release.release_id} is not by a trusted "
            f"key ({', '.join(self._keys)}), or {MANIFEST} was changed after it was signed; check "
            "where the release comes from, then sign it with `presage models sign`"
        )


def key_id(key: Ed25519PublicKey) -> str:
    """Return the first 16 hexadecimal digits of the sha256 of a public key's 32 raw bytes."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:KEY_ID_CHARACTERS]


def _is_signed(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _read_private_key(path: Path) -> Ed25519PrivateKey:
    content = _read(path)
    if b"PUBLIC KEY" in content:
        raise ConfigError(f"{path}: a public key; sign with the private key of the pair")
    if path.stat().st_mode & _GROUP_OR_OTHERS:
        raise ConfigError(f"{path}: other users may read this private key; run `chmod 600` on it")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not an unencrypted private key in PEM ({error})") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path}: not an Ed25519 key; create one with `presage models keygen`")
    return key


def _read_public_key(path: Path) -> Ed25519PublicKey:
    content = _read(path)
    if b"PRIVATE KEY" in content:
        raise ConfigError(
            f"{path}: a private key, which a server does not need; give its .pub file"
        )
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path}: not a public key in PEM ({error})") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path}: not an Ed25519 key; create one with `presage models keygen`")
    return key


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; give a key in PEM")
        with path.open("rb") as file:
            return file.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give a key in PEM"
        ) from error


def _public_pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Create a file with this mode; raise ConfigError if it exists."""
    try:
        write_new(path, content, mode=mode)
    except FileExistsError as error:
        raise ConfigError(f"{path}: the file exists; choose another name") from error
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); choose another path"
        ) from error
