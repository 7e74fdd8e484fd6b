"""Authenticated clients of a server: names, roles, limits and bearer tokens."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from presage.errors import ForbiddenError, UnauthenticatedError

# Prediction server: predict, report, admin. Controller of a live cluster: view, submit, agent,
# admin. Extender of kube-scheduler: bind.
ROLES = ("predict", "report", "admin", "view", "submit", "agent", "bind")

_IMPLIED_BY = {"view": frozenset({"submit", "admin"})}  # role: roles that include it

_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """Authenticated client of a server, or an anonymous client named by its host.

    Attributes
    ----------
    name : str
        Name in logs, quotas and the controller's journal.
    roles : frozenset of str
        Subset of :data:`ROLES`.
    expires_unix_s : float
        Expiry of its credential; infinite for none.
    run_as : str
        Account on the nodes that runs its jobs; "" for the account with the caller's name.
    node : str
        Node of an agent's token.
    devices : tuple of (str, int)
        Kinds and maximum numbers of the devices that this node may declare.
    max_jobs : int
        Limit on its unfinished jobs; 0 for no limit.
    max_bytes : int
        Limit on the serialized size of these jobs together; 0 for no limit.
    is_anonymous : bool
        Whether it has neither a token nor a certificate.
    """

    name: str
    roles: frozenset[str]
    expires_unix_s: float = math.inf
    run_as: str = ""
    node: str = ""
    devices: tuple[tuple[str, int], ...] = ()
    max_jobs: int = 0
    max_bytes: int = 0
    is_anonymous: bool = False

    def require_role(self, role: str) -> None:
        """Raise ForbiddenError unless the caller has the role."""
        if role not in self.roles and not self.roles & _IMPLIED_BY.get(role, frozenset()):
            raise ForbiddenError(
                f"{self.name!r} lacks the role {role!r} that this call requires; "
                "add the role to its line in the server's token file"
            )

    @property
    def is_admin(self) -> bool:
        """Whether the caller may act on the jobs and data of other callers."""
        return "admin" in self.roles

    @property
    def account(self) -> str:
        """Account on the nodes that runs the caller's jobs."""
        return self.run_as or self.name


class Tokens:
    """Callers by the SHA-256 of their tokens.

    A token is 32 random bytes, so a slower hash than SHA-256 would not make it harder to guess.
    """

    def __init__(
        self, callers: Mapping[str, Caller], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._callers = tuple((bytes.fromhex(digest), caller) for digest, caller in callers.items())
        self._clock = clock

    def __len__(self) -> int:
        return len(self._callers)

    def restrict_to(self, digests: Collection[str]) -> Tokens:
        """Return the tokens whose hash is among ``digests``."""
        callers = {key.hex(): caller for key, caller in self._callers if key.hex() in digests}
        return Tokens(callers, clock=self._clock)

    def authenticate(self, metadata: Sequence[tuple[str, str | bytes]]) -> Caller:
        """Return the caller that sent this metadata.

        Raises
        ------
        UnauthenticatedError
            There is no bearer token, or it is unknown or has expired. Never repeats it.
        """
        token = bearer_token(metadata)
        if not token:
            raise UnauthenticatedError(
                "this server requires a token; send the metadata `authorization: Bearer TOKEN`"
            )
        return self.authenticate_token(token)

    def has_expired(self, caller: Caller) -> bool:
        """Return whether the credential of a caller has expired."""
        return self._clock() >= caller.expires_unix_s

    def authenticate_token(self, token: str) -> Caller:
        """Return the caller of a token; raise UnauthenticatedError, which never repeats it."""
        digest = hashlib.sha256(token.encode()).digest()
        found = None
        for known, caller in self._callers:  # no early exit: constant time reveals no position
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise UnauthenticatedError(
                "this server does not know the token; create one with `presage token`"
            )
        if self.has_expired(found):
            raise UnauthenticatedError(
                f"the token of {found.name!r} has expired; create a new one with `presage token`"
            )
        return found


def has_token(metadata: Sequence[tuple[str, str | bytes]]) -> bool:
    """Return whether a call carries a token, valid or not."""
    return any(key == "authorization" for key, _ in metadata)


def bearer_token(metadata: Sequence[tuple[str, str | bytes]]) -> str:
    """Return the bearer token of a call's metadata; "" if there is none."""
    value = next((value for key, value in metadata if key == "authorization"), "")
    if isinstance(value, bytes) or not value.lower().startswith(_SCHEME):
        return ""
    return value[len(_SCHEME) :].strip()
