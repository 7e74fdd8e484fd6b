"""Token files: one caller per line, with its roles, the hash of its token and its limits.

    NAME ROLE[,ROLE...] SHA256 [KEY=VALUE ...]

``expires=2027-01-31T12:00:00Z``, ``run-as=ACCOUNT``, ``node=NAME``, ``devices=KIND:COUNT[,...]``,
``max-jobs=N``, ``max-bytes=N``; # starts a comment.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from presage.errors import ConfigError
from presage.serving.authentication.callers import ROLES, Caller, Tokens
from presage.serving.server.log import log

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[a-z]{1,16}")  # cannot be a hash or a token
_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}")
_NODE = re.compile(r"[^\s#=]{1,128}")
_DEVICES = re.compile(r"[^\s#=:,]{1,64}:[1-9][0-9]{0,3}(,[^\s#=:,]{1,64}:[1-9][0-9]{0,3})*")
_COUNT = re.compile(r"[1-9][0-9]{0,15}")
CHECK_S = 1.0  # between two checks of whether the file has changed


def read_tokens(path: Path) -> Tokens:
    """Read a token file.

    Raises
    ------
    ConfigError
        The file cannot be read, or a line is not valid. The message repeats no text that may be a
        misplaced hash or token.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{path}: the tokens cannot be read ({error}); create a file with `presage token`"
        ) from error
    callers: dict[str, Caller] = {}
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if words:
            digest, caller = _read_line(words, f"{path}:{number}")
            if digest in callers:
                raise ConfigError(f"{path}:{number}: another line has this hash; keep only one")
            callers[digest] = caller
    return Tokens(callers)


def new_token(
    name: str, roles: Sequence[str], limits: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Return a new token and its line for a token file.

    Parameters
    ----------
    limits : mapping of str to str, optional
        KEY=VALUE words of the line.

    Raises
    ------
    ConfigError
        The name, a role or a limit is not valid.
    """
    _check_options(limits or {})
    token = secrets.token_urlsafe(32)
    words = [name, ",".join(roles), hashlib.sha256(token.encode()).hexdigest()]
    words += [f"{key}={value}" for key, value in (limits or {}).items()]
    _read_line(words, "token")
    return token, " ".join(words)


def add_token(
    path: Path, name: str, roles: Sequence[str], limits: Mapping[str, str] | None = None
) -> str:
    """Append the line of a new token to a file and return the token.

    A new file is readable by its owner only.

    Raises
    ------
    ConfigError
        The name has a token already; the name, a role or a limit is not valid; or the file cannot
        be written.
    """
    token, line = new_token(name, roles, limits)
    try:
        before = path.read_text() if path.exists() else ""
        if any(known.split()[:1] == [name] for known in before.splitlines()):
            raise ConfigError(
                f"{path}: {name!r} has a token already; delete its line, or use another name"
            )
        end = "" if before.endswith("\n") or not before else "\n"
        # Append instead of replace: the owner stays, and concurrent commands lose no line.
        with open(path, "a", opener=partial(os.open, mode=0o600)) as file:
            file.write(f"{end}{line}\n")
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{path}: cannot be written ({error}); give another file with --file"
        ) from error
    return token


class TokenFile:
    """Tokens of a file that is read again when it changes, so that tokens can be revoked.

    If the file becomes unreadable, its previous tokens stay valid and an error is logged. If a line
    is not valid, the previous tokens stay valid as far as their hashes are still in the file. A
    server does not start with a file without tokens; a file that loses its last token admits no
    caller.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The mark comes first, so that a change during the read causes another read.
        self._changed_at, self._checked_s = self._mark(), time.monotonic()
        self._tokens = read_tokens(path)
        if not self._tokens:
            raise ConfigError(f"{path}: contains no token; create one with `presage token`")

    def __call__(self) -> Tokens:
        """Return the currently valid tokens."""
        now_s = time.monotonic()
        if now_s - self._checked_s > CHECK_S:
            self._checked_s = now_s
            mark = self._mark()
            if mark != self._changed_at:
                self._changed_at = mark
                self._read()
        return self._tokens

    def _read(self) -> None:
        try:
            self._tokens = read_tokens(self._path)
            log(logging.INFO, "tokens read again", file=str(self._path), tokens=len(self._tokens))
        except ConfigError as error:
            # A revoked token must not stay valid because another line is not valid.
            with suppress(OSError, UnicodeError):
                self._tokens = self._tokens.restrict_to(_hashes(self._path.read_text()))
            log(logging.ERROR, "tokens not read again", reason=str(error))

    def _mark(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return found.st_ino, found.st_size, found.st_mtime_ns


def _hashes(text: str) -> frozenset[str]:
    """Return all hashes of a token file, including those of lines that are not valid."""
    words = (word for line in text.splitlines() for word in line.partition("#")[0].split())
    return frozenset(word for word in words if _HASH.fullmatch(word))


def _read_line(words: Sequence[str], where: str) -> tuple[str, Caller]:
    if len(words) < 3 or not _HASH.fullmatch(words[2]):
        raise ConfigError(
            f"{where}: must be NAME ROLE[,ROLE...] SHA256 [KEY=VALUE...] with a hash of 64 "
            "lower-case hex digits; create the line with `presage token`"
        )
    name, roles = words[0], words[1].split(",")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: the name must be 1 to 64 letters, digits, '.', '_' or '-'; rename it"
        )
    for position, role in enumerate(roles, start=1):
        if role not in ROLES:
            named = repr(role) if _WORD.fullmatch(role) else f"no. {position}"
            raise ConfigError(f"{where}: role {named} does not exist; use {', '.join(ROLES)}")
    caller = Caller(name, frozenset(roles), **_limits(words[3:], where))
    if "agent" in roles and not (caller.node and caller.devices):
        raise ConfigError(
            f"{where}: the role 'agent' requires a node and its devices; add node=NAME and "
            "devices=KIND:COUNT (presage token --node NAME --device KIND:COUNT)"
        )
    return words[2], caller


def _limits(words: Sequence[str], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for position, word in enumerate(words, start=4):
        key, _, value = word.partition("=")
        if key not in _LIMITS:
            raise ConfigError(
                f"{where}: word no. {position} must be one of {', '.join(f'{k}=' for k in _LIMITS)}"
            )
        attribute, read, meaning = _LIMITS[key]
        try:
            found[attribute] = read(value)
        except ValueError:
            raise ConfigError(f"{where}: {key}= must be {meaning}") from None
    return found


def _check_options(limits: Mapping[str, str]) -> None:
    """Raise ConfigError naming the option of `presage token` whose value is not valid."""
    for key, (_, read, meaning) in _LIMITS.items():
        value = limits.get(key)
        try:
            if value is not None:
                read(value)
        except ValueError:
            option = key.replace("devices", "device")
            raise ConfigError(f"--{option} {unquote(str(value))!r}: must be {meaning}") from None


def _instant(text: str) -> float:
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _matching(pattern: re.Pattern[str], make: Callable[[str], Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not pattern.fullmatch(text):
            raise ValueError(text)
        return make(text)

    return read


def _device_counts(text: str) -> tuple[tuple[str, int], ...]:
    rows = [part.rpartition(":") for part in text.split(",")]
    return tuple((unquote(kind), int(count)) for kind, _, count in rows)


# Key -> attribute of Caller, parser of the value, and the description of valid values.
_LIMITS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "expires": ("expires_unix_s", _instant, "a time, such as 2027-01-31T12:00:00Z"),
    "run-as": ("run_as", _matching(_ACCOUNT, str), "the name of an account"),
    "node": ("node", _matching(_NODE, str), "a node's name, without spaces, '=' or '#'"),
    "devices": ("devices", _matching(_DEVICES, _device_counts), "KIND:COUNT[,KIND:COUNT...]"),
    "max-jobs": ("max_jobs", _matching(_COUNT, int), "a whole number from 1"),
    "max-bytes": ("max_bytes", _matching(_COUNT, int), "a whole number from 1"),
}
