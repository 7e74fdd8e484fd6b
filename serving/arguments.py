"""Options of ``presage serve``, by argparse: a serving image has neither typer nor rich."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from presage.errors import ServiceError
from presage.serving.server_options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DRIFT_S,
    FALSE_ALARM_OUTCOMES,
    GRACE_S,
    MAX_CHANGE,
    MAX_QUEUED_CALLS,
    MAX_QUEUED_ROWS,
    POLL_S,
    Options,
    Tls,
)
from presage.system.files.data_folder import default_log
from presage.system.files.log_address import log_address
from presage.system.text.help_page import Section, help_page, with_notes
from presage.system.text.printable import error_line

DRAIN_S = 1.0

_DESCRIPTION = """
Serve predictions over gRPC, and over HTTP/JSON with --http-port, until SIGTERM or Ctrl-C.

Without --release and --registry, the champion of the default registry is served, or the pretrained
release if there is no champion. A new champion, or a replaced release folder, is loaded without a
restart.
"""
_EXAMPLES = """
presage serve

# JSON for clients without gRPC
presage serve --http-port 8080

# The champion of a shared registry, with TLS and tokens
presage serve --registry http://mlflow:5000 --host 0.0.0.0 \\
  --tls-cert cert.pem --tls-key key.pem --tokens tokens
"""

# Name, type, placeholder, default, help text.
_Option = tuple[str, Callable[[str], Any], str, Any, str]
_FOLLOWING: Sequence[_Option] = (
    ("--poll-s", float, "SECONDS", POLL_S, "Seconds between checks for a newer release."),
    ("--max-change", float, "FACTOR", MAX_CHANGE,
     "Reject a release whose predictions differ from the current one's by more than this factor."),
)  # fmt: skip
_LISTENING: Sequence[_Option] = (
    ("--host", str, "HOST", DEFAULT_HOST, "Address to listen on."),
    ("--port", int, "PORT", DEFAULT_PORT, "Port to listen on; 0 selects a free port."),
    ("--http-port", int, "PORT", None, "Port for HTTP/JSON; 0 selects a free port."),
    ("--workers", int, "N", 1, "Number of worker processes, about one per core."),
    ("--metrics-port", int, "PORT", None,
     f"Port for Prometheus metrics, on {DEFAULT_HOST}, or on --host with --allow-remote."),
)  # fmt: skip
_SECURITY: Sequence[_Option] = (
    ("--tls-cert", Path, "PEM", None, "Certificate of the server."),
    ("--tls-key", Path, "PEM", None, "Private key of --tls-cert."),
    ("--client-ca", Path, "PEM", None, "Require client certificates signed by this authority."),
    ("--tokens", Path, "FILE", None, "Require a token from this file (see `presage token`)."),
)
_LIMITS: Sequence[_Option] = (
    ("--rows-per-s", float, "ROWS", None, "Maximum rate of rows of each client."),
    ("--queue-calls", int, "CALLS", MAX_QUEUED_CALLS, "Maximum number of queued requests."),
    ("--queue-rows", int, "ROWS", MAX_QUEUED_ROWS, "Maximum number of queued rows."),
    ("--drain-s", float, "SECONDS", DRAIN_S, "Seconds to continue serving after SIGTERM."),
    ("--grace-s", float, "SECONDS", GRACE_S, "Seconds to then wait for requests in flight."),
)
_OUTCOMES: Sequence[_Option] = (
    ("--outcomes", log_address, "LOG", None,
     "Log of reported outcomes: a file, or the postgresql:// URL of a database that several "
     "servers share (default: data/outcomes/log.db in a checkout, else "
     "~/.local/state/presage/outcomes/log.db)."),
    ("--false-alarm-outcomes", int, "N", FALSE_ALARM_OUTCOMES,
     "Minimum mean number of outcomes between false alarms of drift."),
    ("--drift-s", float, "SECONDS", DRIFT_S,
     "Seconds between checks of the log, for drift and offsets."),
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """Parser with the help page of the other commands, and errors of one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"error: {error_line(message)}; see `{self.prog} --help`\n")

    def format_help(self) -> str:
        """Return the help page."""
        sections = [
            Section(str(group.title), [_row(action) for action in group._group_actions
                                       if action.help != argparse.SUPPRESS])
            for group in self._action_groups
        ]  # fmt: skip
        sections.sort(key=lambda section: section.title != "Options")
        return help_page(f"{self.prog} [OPTIONS]", _DESCRIPTION, sections, _EXAMPLES)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    out = _Parser(prog="presage serve", add_help=False)
    _add_release(out.add_argument_group("Release"))
    listening = _add(out.add_argument_group("Listening"), _LISTENING)
    listening.add_argument(
        "--allow-remote",
        action="store_true",
        help="Listen beyond loopback without TLS, and serve metrics there.",
    )
    _add(out.add_argument_group("Security"), _SECURITY)
    _add(out.add_argument_group("Limits"), _LIMITS)
    outcomes = _add(out.add_argument_group("Outcomes and drift"), _OUTCOMES)
    outcomes.add_argument("--no-outcomes", action="store_true", help="Reject reported outcomes.")
    outcomes.add_argument(
        "--no-offsets",
        action="store_true",
        help="Serve forecasts of the release as they are, without offsets learned from outcomes.",
    )
    _add_others(out.add_argument_group("Options"))
    # Set for each of several worker processes.
    out.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return out


def _add_release(group: Any) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument("--release", type=Path, metavar="DIR", help="Release folder to serve.")
    source.add_argument("--registry", metavar="URI", help="Model registry whose champion to serve.")
    group.add_argument(
        "--trusted-key",
        type=Path,
        metavar="PEM",
        action="append",
        default=[],
        help="Serve only releases signed with this public key (see `presage models sign`). Repeat "
        "for several keys. Needs presage[sign].",
    )
    _add(group, _FOLLOWING)


def _add_others(group: Any) -> None:
    group.add_argument(
        "--devices",
        type=Path,
        metavar="FILE",
        help="YAML file with additional kinds of devices. The variable PRESAGE_DEVICES names such "
        "a file too.",
    )
    group.add_argument(
        "--access-log", action="store_true", help="Log each request and its client as JSON."
    )
    group.add_argument("-h", "--help", action="help", help="Show this message and exit.")


def _add(group: Any, options: Sequence[_Option]) -> Any:
    for name, kind, metavar, default, text in options:
        group.add_argument(name, type=kind, metavar=metavar, default=default, help=text)
    return group


def _row(action: Any) -> tuple[str, str]:
    name = ", ".join(action.option_strings)
    if action.nargs == 0:  # a flag
        return name, action.help
    default = action.default
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    notes = [] if default in (None, []) else [f"default: {shown}"]
    return f"{name} {action.metavar}", with_notes(action.help, notes)


def options_of(args: argparse.Namespace) -> Options:
    """Return the options of the server.

    Raises
    ------
    ServiceError
        A number is out of range, or an option is given without those that it needs.
    """
    _check_numbers(args)
    return Options(
        host=args.host,
        port=args.port,
        http_port=args.http_port,
        allow_remote=args.allow_remote,
        tls=_tls(args),
        tokens=args.tokens,
        rows_per_s=args.rows_per_s,
        queue_calls=args.queue_calls,
        queue_rows=args.queue_rows,
        outcomes=None if args.no_outcomes else args.outcomes or default_log(),
        access_log=args.access_log,
        false_alarm_outcomes=args.false_alarm_outcomes,
        drift_s=args.drift_s,
        offsets=not args.no_offsets,
        poll_s=args.poll_s,
        max_change=args.max_change,
        drain_s=args.drain_s,
        grace_s=args.grace_s,
        shared_port=args.worker or args.workers > 1,
    )


def _tls(args: argparse.Namespace) -> Tls | None:
    if (args.tls_cert is None) != (args.tls_key is None):
        raise ServiceError("give both --tls-cert and --tls-key, or neither")
    if args.client_ca is not None and args.tls_cert is None:
        raise ServiceError("--client-ca needs --tls-cert and --tls-key; give them too")
    return Tls(args.tls_cert, args.tls_key, args.client_ca) if args.tls_cert else None


def _check_numbers(args: argparse.Namespace) -> None:
    if args.workers < 1:
        raise ServiceError(f"--workers {args.workers}: give 1 or more")
    for name in ("poll_s", "drift_s", "false_alarm_outcomes", "metrics_port", "rows_per_s",
                 "queue_calls", "queue_rows"):  # fmt: skip
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ServiceError(f"--{name.replace('_', '-')} {value:g}: give a number above 0")
    if args.http_port is not None and not 0 <= args.http_port <= 65535:
        raise ServiceError(f"--http-port {args.http_port}: give 0 to 65535 (0: any free one)")
    if args.http_port and args.http_port == args.port:
        raise ServiceError("--http-port and --port are equal; gRPC and HTTP need a port each")
    for name, least in (("drain_s", 0), ("grace_s", 0), ("max_change", 1)):
        value = getattr(args, name)
        if not value >= least:  # also rejects NaN
            raise ServiceError(f"--{name.replace('_', '-')} {value:g}: give {least} or more")
