"""Account of this machine that a job runs as: looked up by the agent, assumed by the job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from presage.errors import InvalidJobError


@dataclass(frozen=True, slots=True)
class Account:
    """Entry of the machine's user database, as of the creation of the task.

    Attributes
    ----------
    groups : tuple of int
        All groups of the account, including the primary group.
    """

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    def variables(self) -> dict[str, str]:
        """Return the environment variables that login(1) sets."""
        return {
            "HOME": self.home,
            "USER": self.name,
            "LOGNAME": self.name,
            "SHELL": self.shell or "/bin/sh",
        }

    def to_json(self) -> dict[str, object]:
        """Return the JSON object for a task's ``spec.json``."""
        return {**asdict(self), "groups": list(self.groups)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Account:
        """Read what :meth:`to_json` wrote; raises KeyError, TypeError or ValueError."""
        numbers = [row["uid"], row["gid"], *row["groups"]]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"{numbers!r} are not user and group ids")
        texts = {name: str(row[name]) for name in ("name", "home", "shell")}
        return cls(uid=row["uid"], gid=row["gid"], groups=tuple(row["groups"]), **texts)


def find_account(run_as: str, node: str, *, allow_root: bool) -> Account | None:
    """Return the account that a job runs as; None for the agent's own.

    An agent that is not root cannot change its user: its jobs run as its own user, whatever
    ``run_as`` is.

    Parameters
    ----------
    run_as : str
        Name of the account, which the controller takes from the submitter's token; "" for none.
    allow_root : bool
        Whether a job may run as root: as an account with uid 0, or without an account.

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
    import pwd  # not on every platform that imports this module

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
    """Return :meth:`Account.variables` of the user of this process."""
    import pwd

    try:
        found = pwd.getpwuid(os.geteuid())
    except KeyError:  # the user of a container may be missing from the database
        names = ("HOME", "USER", "LOGNAME", "SHELL")
        return {name: os.environ[name] for name in names if name in os.environ}
    return Account(
        found.pw_name, found.pw_uid, found.pw_gid, (), found.pw_dir, found.pw_shell
    ).variables()


def become(account: Account) -> None:
    """Change the user of this process to an account, irreversibly.

    Raises
    ------
    OSError
        The kernel refuses, as it does unless the process is root.
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
