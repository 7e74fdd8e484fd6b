"""The account of this machine that a job runs as: found by the agent, taken on by the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from presage.errors import InvalidJobError


@dataclass(frozen=True, slots=True)
class Account:
    """An entry of the machine's user database, as it was when the task was made.

    Attributes
    ----------
    groups : tuple of int
        All of the account's groups, the primary one included.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def variables(self) -> dict[str, str]:
        """What login(1) would set in the environment."""
        return {
            "HOME": self.home,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": self.shell or "/bin/sh",
        }

    def to_json(self) -> dict[str, object]:
        """As a task's ``spec.json`` has it."""
        return {**asdict(self), "groups": list(self.groups)}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Account:
        """Read what :meth:`to_json` wrote; raises KeyError, TypeError or ValueError."""
        numbers = [said["uid"], said["gid"], *said["groups"]]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"{numbers!r} are not numbers of an account")
        texts = {name: str(said[name]) for name in ("name", "home", "shell")}
        return cls(uid=said["uid"], gid=said["gid"], groups=tuple(said["groups"]), **texts)


def account_of(run_as: str, node: str, *, allow_root: bool) -> Account | None:
    """The account that a job is to run as; None for the agent's own.

    An agent that is not root cannot change its user: its jobs run as itself, whatever is asked for.

    Parameters
    ----------
    run_as : str
        The account's name, as the controller has it from the submitter's token; "" for none.
    allow_root : bool
        Whether a job may run as root: as account of uid 0, or as none in particular.

    Raises
    ------
    InvalidJobError
        The node has no such account, or the job may not run as it.
    """
    if os.geteuid() != 0:
        return None
    if not run_as:
        if allow_root:
            return None
        raise InvalidJobError(
            f"no account to run as on node {node}, whose agent is root: give the token "
            "run-as=ACCOUNT, or start the agent with --allow-root-jobs"
        )
    import pwd  # not on every machine that reads this module

    try:
        found = pwd.getpwnam(run_as)
    except KeyError:
        raise InvalidJobError(
            f"no account {run_as!r} on node {node}: create it, or give the token run-as=ACCOUNT"
        ) from None
    if found.pw_uid == 0 and not allow_root:
        raise InvalidJobError(
            f"account {run_as!r} of node {node} is root: give the token another run-as=ACCOUNT, or "
            "start the agent with --allow-root-jobs"
        )
    groups = tuple(os.getgrouplist(run_as, found.pw_gid))
    return Account(run_as, found.pw_uid, found.pw_gid, groups, found.pw_dir or "/", found.pw_shell)


def own_variables() -> dict[str, str]:
    """As :meth:`Account.variables`, of this process' own user."""
    import pwd

    try:
        found = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container's user need not be in the database
        names = ("HOME", "USER", "LOGNAME", "SHELL")
        return {name: os.environ[name] for name in names if name in os.environ}
    return Account(
        found.pw_name, found.pw_uid, found.pw_gid, (), found.pw_dir, found.pw_shell
    ).variables()


def become(account: Account) -> None:
    """Make this process the account's for good; there is no way back.

    Raises
    ------
    OSError
        The kernel refuses, as it does any process but root's.
    """
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    if account.uid == 0:
        return
    try:
        os.setresuid(0, 0, 0)
    except PermissionError:
        return
    raise PermissionError(f"this process can still become root after it became {account.name!r}")
