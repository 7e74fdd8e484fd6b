"""Who calls, and what they may: bearer tokens by their hashes, certificates by their names."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from presage.features.errors import ConfigError, ForbiddenError, UnauthenticatedError
from presage.serving.log import log

ROLES = ("predict", "report", "admin", "submit", "agent", "bind")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[a-z]{1,16}")  # neither a hash nor a token
_SCHEME = "bearer "
_LOOK_S = 1.0  # between looks at the file


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a call is from, by name, and the roles it has."""

    name: str
    roles: frozenset[str]

    def must_be(self, role: str) -> None:
        """Refuse a caller without that role."""
        if role not in self.roles:
            raise ForbiddenError(
                f"{self.name!r} may not do this: it takes the role {role!r}; "
                "give it to that name in the server's token file"
            )


class Tokens:
    """Callers by the SHA-256 of their tokens.

    A token is 32 random bytes: nothing slower than SHA-256 would make it harder to guess.
    """

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = tuple((bytes.fromhex(digest), who) for digest, who in callers.items())

    def __len__(self) -> int:
        return len(self._callers)

    def caller(self, metadata: Sequence[tuple[str, str | bytes]]) -> Caller:
        """Who sent a call with this metadata.

        Raises
        ------
        UnauthenticatedError
            It has no bearer token, or one that is not known. Never repeats it.
        """
        sent = next((value for key, value in metadata if key == "authorization"), "")
        if isinstance(sent, bytes) or not sent.lower().startswith(_SCHEME):
            raise UnauthenticatedError(
                "this server asks who calls; send the metadata `authorization: Bearer TOKEN`"
            )
        digest = hashlib.sha256(sent[len(_SCHEME) :].strip().encode()).digest()
        found = None
        for known, caller in self._callers:  # to the end: how long it takes tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise UnauthenticatedError(
                "the token is not known to this server; `presage token` makes one"
            )
        return found


def read_tokens(path: Path) -> Tokens:
    """Tokens of a file with a line ``NAME ROLE[,ROLE...] SHA256`` each; # begins a comment.

    Raises
    ------
    ConfigError
        The file cannot be read, or a line is not such a line. It repeats nothing that may be a
        hash or a token in the wrong place.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{path}: the tokens cannot be read ({error}); make a file with `presage token`"
        ) from error
    callers: dict[str, Caller] = {}
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if words:
            digest, caller = _read_line(words, f"{path}:{number}")
            if digest in callers:
                raise ConfigError(f"{path}:{number}: another line has this hash; leave one of them")
            callers[digest] = caller
    return Tokens(callers)


def new_token(name: str, roles: Sequence[str]) -> tuple[str, str]:
    """A new token, and the line of the file that lets it in.

    Raises
    ------
    ConfigError
        The name or a role is not one.
    """
    token = secrets.token_urlsafe(32)
    words = [name, ",".join(roles), hashlib.sha256(token.encode()).hexdigest()]
    _read_line(words, "token")
    return token, " ".join(words)


def add_token(path: Path, name: str, roles: Sequence[str]) -> str:
    """A new token, whose line is added to a file; nobody but its owner may read a new file.

    Raises
    ------
    ConfigError
        The name is taken or is none, a role is not one, or the file cannot be written.
    """
    token, line = new_token(name, roles)
    try:
        before = path.read_text() if path.exists() else ""
        if any(known.split()[:1] == [name] for known in before.splitlines()):
            raise ConfigError(
                f"{path}: {name!r} has a token; delete its line, or take another name"
            )
        end = "" if before.endswith("\n") or not before else "\n"
        # Added to the file, not written anew: it stays whose it is, and two at once lose no line.
        with open(path, "a", opener=partial(os.open, mode=0o600)) as file:
            file.write(f"{end}{line}\n")
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{path}: cannot be written ({error}); name another with --file"
        ) from error
    return token


def _read_line(words: Sequence[str], where: str) -> tuple[str, Caller]:
    if len(words) != 3 or not _HASH.fullmatch(words[2]):
        raise ConfigError(
            f"{where}: must be NAME ROLE[,ROLE...] SHA256, the hash in 64 lower-case hex digits; "
            "write the line with `presage token`"
        )
    name, roles = words[0], words[1].split(",")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: the name must be 1 to 64 letters, digits, '.', '_' or '-'; rename it"
        )
    for position, role in enumerate(roles, start=1):
        if role not in ROLES:
            named = repr(role) if _WORD.fullmatch(role) else f"no. {position}"
            raise ConfigError(f"{where}: role {named} is not known; use {', '.join(ROLES)}")
    return words[2], Caller(name, frozenset(roles))


class TokenFile:
    """The tokens of a file, read again when it has changed: a token can be taken back at once.

    A file that has become unreadable lets in whom it let in before, and says so; one without a
    token, with which no server starts, then lets nobody in.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The mark first: what is changed while it is read is then read again.
        self._changed_at, self._looked_s = self._mark(), time.monotonic()
        self._tokens = read_tokens(path)
        if not self._tokens:
            raise ConfigError(f"{path}: no token is in it; make one with `presage token`")

    def __call__(self) -> Tokens:
        """Those that are let in now."""
        now_s = time.monotonic()
        if now_s - self._looked_s > _LOOK_S:
            self._looked_s = now_s
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
            log(logging.ERROR, "tokens not read again", reason=str(error))

    def _mark(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return found.st_ino, found.st_size, found.st_mtime_ns
