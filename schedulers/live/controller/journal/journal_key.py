"""Key of a journal: authenticates its content and encrypts its secrets.

A user that can write the database but cannot read the key can neither forge a record nor read
the environment of a job. The key is 32 random bytes in a separate file, in hex digits.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from presage.errors import ConfigError, JournalError, one_line
from presage.system.files.atomic_file import sync_folder, write_new

_BYTES = 32
_NONCE_BYTES = 12  # of AES-GCM
_SEALED = "aes-gcm:"
# Keys of the job's message, as JSON, in a record and in a row of a snapshot.
_JOBS = ("job", "job_json")


class JournalKey:
    """Key of one journal; a separate key is derived from it for each use.

    Attributes
    ----------
    key_id : str
        Identifies the key, and reveals nothing about it.
    """

    def __init__(self, secret: bytes) -> None:
        self.key_id = self._derived(secret, "id").hex()[:16]
        self._mac_key = self._derived(secret, "records")
        self._cipher_key = self._derived(secret, "environment")
        self._cipher: Any = None

    def mac(self, *parts: object) -> str:
        """Return the HMAC-SHA256 of some JSON values, in hex digits."""
        content = json.dumps(parts, separators=(",", ":")).encode()
        return hmac.digest(self._mac_key, content, "sha256").hex()

    def hide(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a record with the environment of its job encrypted."""
        for name in _JOBS:
            job = record.get(name)
            if isinstance(job, Mapping) and isinstance(job.get("environment"), Mapping):
                return {**record, name: {**job, "environment": self._encrypted(record, job)}}
        return record

    def reveal(self, record: Any) -> Any:
        """Return a record as it was before :meth:`hide`. Raises ValueError if that fails."""
        if not isinstance(record, dict):
            return record
        for name in _JOBS:
            job: Any = record.get(name)
            sealed = job.get("environment") if isinstance(job, dict) else None
            if isinstance(sealed, str) and sealed.startswith(_SEALED):
                return {**record, name: {**job, "environment": self._decrypted(record, sealed)}}
        return record

    def _encrypted(self, record: Mapping[str, Any], job: Mapping[str, Any]) -> str:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        plain = json.dumps(job["environment"]).encode()
        content = self._aes().encrypt(nonce, plain, _bound_to(record))
        return _SEALED + base64.b64encode(nonce + content).decode()

    def _decrypted(self, record: Mapping[str, Any], sealed: str) -> Any:
        cipher = self._aes()
        from cryptography.exceptions import InvalidTag

        try:
            content = base64.b64decode(sealed.removeprefix(_SEALED), validate=True)
            plain = cipher.decrypt(
                content[:_NONCE_BYTES], content[_NONCE_BYTES:], _bound_to(record)
            )
        except (InvalidTag, binascii.Error) as error:
            raise ValueError("its environment was encrypted with another key") from error
        return json.loads(plain)

    def _aes(self) -> Any:
        if self._cipher is None:
            try:
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM
            except ImportError as error:
                raise ConfigError(
                    f"the environments of jobs are encrypted, which needs 'cryptography' "
                    f"({error}); pip install 'presage[cluster]'"
                ) from error
            self._cipher = AESGCM(self._cipher_key)
        return self._cipher

    @staticmethod
    def _derived(secret: bytes, use: str) -> bytes:
        return hmac.digest(secret, f"presage journal {use}".encode(), "sha256")


def read_key(path: Path, journal: str) -> JournalKey:
    """Read the key of a journal.

    Raises
    ------
    JournalError
        It is missing or not a key, or another user owns it or can read it.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            found = os.fstat(opened)
            text = file.read(2 * _BYTES + 2) if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        raise JournalError(
            f"journal {journal}: its key {path} cannot be read ({one_line(error)}); restore it "
            "from a backup, or pass its path with --journal-key: without it the journal cannot be "
            "verified, nor the environments of its jobs read; or use another journal"
        ) from error
    if found.st_uid not in (0, os.geteuid()):
        raise JournalError(
            f"journal {journal}: its key {path} belongs to another user; restore your own copy, or "
            "pass its path with --journal-key"
        )
    if found.st_mode & 0o027:
        raise JournalError(
            f"journal {journal}: other users can read or change its key {path}; chmod 600 {path}"
        )
    try:
        secret = bytes.fromhex(text.decode())
    except (ValueError, UnicodeDecodeError):
        secret = b""
    if len(secret) != _BYTES:
        raise JournalError(
            f"journal {journal}: {path} is not a key of {_BYTES} bytes in hex digits; restore it "
            "from a backup"
        )
    return JournalKey(secret)


def make_key(path: Path, journal: str) -> JournalKey:
    """Create the key of a new journal, durably; an existing key is read instead.

    Raises
    ------
    JournalError
        It cannot be written, or as :func:`read_key` does.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_new(path, f"{secrets.token_hex(_BYTES)}\n".encode())
        sync_folder(path.parent)
    except FileExistsError:
        pass
    except OSError as error:
        path.unlink(missing_ok=True)
        raise JournalError(
            f"journal {journal}: its key {path} cannot be written ({one_line(error)}); free space, "
            "make the folder writable, or pass another file with --journal-key"
        ) from error
    return read_key(path, journal)


def _bound_to(record: Mapping[str, Any]) -> bytes:
    """Return the data that binds an environment to its job, so that it cannot be exchanged."""
    return json.dumps(record.get("job_id")).encode()
