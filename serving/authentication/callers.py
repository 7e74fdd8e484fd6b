"""Callers of a server: their names, roles and limits, authenticated by bearer tokens."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from presage.errors import ForbiddenError, UnauthenticatedError

# predict, report, admin: of a prediction server. view, submit, agent, admin: of a live cluster's
# controller. bind: of the extender of kube-scheduler.
ROLES = ("predict", "report", "admin", "view", "submit", "agent", "bind")

_IMPLIED_BY = {"view": frozenset({"submit", "admin"})}  # roles that another one comes with

_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client of a server, or an anonymous one, named by its host.

    Attributes
    ----------
    name : str
        As logs, quotas and the controller's journal have it.
    roles : frozenset of str
        Of :data:`ROLES`.
    expires_unix_s : float
        When its credential expires; infinite for never.
    run_as : str
        Account of the nodes that its jobs run as; "" for the account of its name.
    node : str
        The only node that it may be, as an agent.
    devices : tuple of (str, int)
        By kind, how many devices that node may declare.
    max_jobs : int
        Jobs that it may have at once, not counting those that ended; 0 for any number.
    max_bytes : int
        Size of these jobs together, as they travel; 0 for any.
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

    def must_be(self, role: str) -> None:
        """Raise ForbiddenError unless the caller has that role."""
        if role not in self.roles and not self.roles & _IMPLIED_BY.get(role, frozenset()):
            raise ForbiddenError(
                f"{self.name!r} may not do this: it takes the role {role!r}; "
                "give it to that name in the server's token file"
            )

    @property
    def is_admin(self) -> bool:
        """Whether it may act on what belongs to others."""
        return "admin" in self.roles

    @property
    def account(self) -> str:
        """Account of the nodes that its jobs run as."""
        return self.run_as or self.name


class Tokens:
    """Callers by the SHA-256 of their tokens.

    A token is 32 random bytes: nothing slower than SHA-256 would make it harder to guess.
    """

    def __init__(
        self, callers: Mapping[str, Caller], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._callers = tuple((bytes.fromhex(digest), who) for digest, who in callers.items())
        self._clock = clock

    def __len__(self) -> int:
        return len(self._callers)

    def only(self, digests: Collection[str]) -> Tokens:
        """Return those of these tokens that have one of these hashes."""
        kept = {key.hex(): who for key, who in self._callers if key.hex() in digests}
        return Tokens(kept, clock=self._clock)

    def caller(self, metadata: Sequence[tuple[str, str | bytes]]) -> Caller:
        """Return the caller that sent this metadata.

        Raises
        ------
        UnauthenticatedError
            There is no bearer token, or it is unknown or has expired. Never repeats it.
        """
        sent = bearer_token(metadata)
        if not sent:
            raise UnauthenticatedError(
                "this server needs a token; send the metadata `authorization: Bearer TOKEN`"
            )
        return self.of_token(sent)

    def of_token(self, token: str) -> Caller:
        """Return the caller of a token. Raises UnauthenticatedError, which never repeats it."""
        digest = hashlib.sha256(token.encode()).digest()
        found = None
        for known, caller in self._callers:  # to the end: how long it takes tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise UnauthenticatedError(
                "the token is not known to this server; `presage token` makes one"
            )
        if self._clock() >= found.expires_unix_s:
            raise UnauthenticatedError(
                f"the token of {found.name!r} has expired; `presage token` makes a new one"
            )
        return found


def has_token(metadata: Sequence[tuple[str, str | bytes]]) -> bool:
    """Return whether a call shows a token, valid or not."""
    return any(key == "authorization" for key, _ in metadata)


def bearer_token(metadata: Sequence[tuple[str, str | bytes]]) -> str:
    """Return the bearer token of a call's metadata; "" if there is none."""
    sent = next((value for key, value in metadata if key == "authorization"), "")
    if isinstance(sent, bytes) or not sent.lower().startswith(_SCHEME):
        return ""
    return sent[len(_SCHEME) :].strip()
