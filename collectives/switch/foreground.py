"""A switch in the foreground of a terminal or a service manager: until a signal ends it."""

from __future__ import annotations

import errno
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import Implementation, SwitchProcess
from presage.errors import ConfigError, ServiceError

_POLL_S = 0.1


class Listening(NamedTuple):
    """What a switch that has started reports.

    Attributes
    ----------
    aggregator : str
        "C" or "Python".
    reason : str
        Why it is not the compiled one; "" if it is.
    """

    host: str
    port: int
    slots: int
    is_controlled: bool
    aggregator: str
    reason: str
    process_id: int


def run_switch(
    options: SwitchOptions,
    token: str,
    implementation: Implementation,
    report: Callable[[Listening], None],
) -> None:
    """Run a switch until SIGTERM or SIGINT.

    Parameters
    ----------
    report : callable
        Called once it listens.

    Raises
    ------
    ConfigError
        It would listen for other machines without a token.
    ServiceError
        The port is in use, the switch cannot be started, or it has ended by itself.
    """
    if not token and not _is_loopback(options.host):
        raise ConfigError(
            f"a switch at {options.host} needs a token: set PRESAGE_SWITCH_TOKEN, here and for the "
            "arbiter and ranks, or listen on 127.0.0.1"
        )
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    _check_free(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    with SwitchProcess(options, token=token, implementation=implementation) as switch:
        report(_listening(options, switch))
        while not stopping.wait(_POLL_S):
            status = switch.process.poll()
            if status is not None and not stopping.wait(_POLL_S):  # Ctrl-C ends both
                raise ServiceError(f"the switch ended by itself; its status is {status}")


def _check_free(options: SwitchOptions) -> None:
    """Raise ServiceError if another process listens on the port."""
    with suppress(UnicodeError):
        try:
            found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
            socket.create_server(found[0][4][:2], family=found[0][0]).close()
        except OSError as error:  # the switch itself reports other problems
            if error.errno == errno.EADDRINUSE:
                raise ServiceError(
                    f"port {options.port} of {options.host} is in use; stop the other process, or "
                    "give another one by --port"
                ) from error


def _is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listening(options: SwitchOptions, switch: SwitchProcess) -> Listening:
    aggregator = "Python" if switch.fallback_reason else "C"
    return Listening(
        switch.host, switch.port, options.slots, options.controlled, aggregator,
        switch.fallback_reason, switch.process.pid,
    )  # fmt: skip
