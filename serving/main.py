"""``presage serve``, by argparse: a serving image needs no package of the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from presage.errors import PresageError, ServiceError
from presage.serving.server_options import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DRIFT_S,
    FALSE_ALARM_OUTCOMES,
    GRACE_S,
    Options,
    Tls,
)
from presage.system.data_folder import default_log
from presage.system.printable import error_line

if TYPE_CHECKING:
    from presage.serving.predictor.release_follower import CheckoutSource, Source

DRAIN_S = 1.0


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(2, f"error: {error_line(message)}; see `{self.prog} --help`\n")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    out = _Parser(
        prog="presage serve",
        description="Answer predictions over gRPC until SIGTERM or Ctrl-C. Without --release and "
        "--registry the champion of the default registry is served, or before there is any the "
        "release that is installed with Presage. What is served is followed: a new champion, or a "
        "folder that was replaced, takes over between two calls.",
    )
    what = out.add_argument_group("what is served").add_mutually_exclusive_group()
    what.add_argument("--release", type=Path, metavar="DIR", help="a release folder")
    what.add_argument("--registry", metavar="URI", help="the champion of a registry")
    what_is = out.add_argument_group("what is trusted")
    what_is.add_argument(
        "--trusted-key",
        type=Path,
        metavar="PEM",
        action="append",
        default=[],
        help="serve only releases that this public key signed (presage models sign); repeat it; "
        "needs presage[sign]",
    )
    _add(out, "how it is followed", [
        ("--poll-s", float, "S", 5.0, "seconds from one look for a newer release to the next"),
        ("--max-change", float, "FACTOR", 10.0,
         "refuse a release whose medians are further than this from the last one's"),
    ])  # fmt: skip
    where = _add(out, "where", [
        ("--host", str, "HOST", DEFAULT_HOST, "address to listen on"),
        ("--port", int, "PORT", DEFAULT_PORT, "0 for any free one"),
        ("--workers", int, "N", 1, "processes that share the port, about one for each core"),
        ("--metrics-port", int, "PORT", None,
         f"answer Prometheus there, on {DEFAULT_HOST}, or on --host with --allow-remote"),
    ])  # fmt: skip
    where.add_argument(
        "--allow-remote",
        action="store_true",
        help="listen beyond loopback without encryption, and show metrics there",
    )
    _add(out, "who may call", [
        ("--tls-cert", Path, "PEM", None, "the server's certificate"),
        ("--tls-key", Path, "PEM", None, "its key"),
        ("--client-ca", Path, "PEM", None, "ask clients for certificates that this one signed"),
        ("--tokens", Path, "FILE", None, "ask clients for tokens (presage token)"),
    ])  # fmt: skip
    _add(out, "how much", [
        ("--rows-per-s", float, "ROWS", None, "of one client; as many as it likes by default"),
        ("--queue-calls", int, "CALLS", 256, "that may wait to be begun"),
        ("--queue-rows", int, "ROWS", 32_768, "of large requests that may wait"),
        ("--drain-s", float, "S", DRAIN_S, "go on answering this long after SIGTERM"),
        ("--grace-s", float, "S", GRACE_S, "then wait this long for calls in flight"),
    ])  # fmt: skip
    kept = _add(out, "what is kept", [
        ("--outcomes", Path, "FILE", None,
         "log of reported outcomes (data/outcomes/log.db in a checkout, else "
         "~/.local/state/presage/outcomes/log.db)"),
    ])  # fmt: skip
    _add(out, "how drift is called", [
        ("--false-alarm-outcomes", int, "N", FALSE_ALARM_OUTCOMES,
         "outcomes between two false alarms, on average, at least"),
        ("--drift-s", float, "S", DRIFT_S, "seconds from one look at the log to the next"),
    ])  # fmt: skip
    kept.add_argument("--no-outcomes", action="store_true", help="refuse reports")
    kept.add_argument("--access-log", action="store_true", help="log every call, as JSON")
    out.add_argument(
        "--devices",
        type=Path,
        metavar="FILE",
        help="YAML file of further kinds of devices (docs/devices.md); or set PRESAGE_DEVICES",
    )
    # What one of several workers is told, besides its share of the above.
    out.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return out


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; one line for an error a person can mend, and exit code 1."""
    told = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(told)
    try:
        _serve(args, told)
    except (PresageError, OSError) as error:
        sys.stderr.write(f"error: {error_line(error)}\n")
        sys.exit(1)


def _serve(args: argparse.Namespace, told: Sequence[str]) -> None:
    if args.devices is not None:
        from presage.features.device.device import use_devices

        use_devices(args.devices)
    options = _options(args)
    if args.workers > 1:
        from presage.serving.server.worker_processes import run_workers

        run_workers(args.workers, told, options, args.metrics_port)
        return
    import uvloop

    from presage.serving.server.log import log_as_json
    from presage.serving.server.prometheus_metrics import Metrics, serve_metrics
    from presage.serving.server.server import run_server
    from presage.serving.server.tracing import configured_span

    log_as_json()
    metrics = Metrics()
    source = _source(args)
    shown = None if args.worker else args.metrics_port
    stop_metrics = serve_metrics(metrics, options.metrics_host, shown) if shown else None
    try:
        uvloop.run(
            run_server(
                source, options, metrics, _say, span=configured_span(), until_input_ends=args.worker
            )
        )
    finally:
        if stop_metrics is not None:
            stop_metrics()


def _options(args: argparse.Namespace) -> Options:
    if args.workers < 1:
        raise ServiceError(f"--workers {args.workers}: give 1 or more")
    if (args.tls_cert is None) != (args.tls_key is None):
        raise ServiceError("give both --tls-cert and --tls-key, or neither")
    if args.client_ca is not None and args.tls_cert is None:
        raise ServiceError("--client-ca goes with --tls-cert and --tls-key; give them too")
    for name in (
        "poll_s",
        "drift_s",
        "false_alarm_outcomes",
        "metrics_port",
        "rows_per_s",
        "queue_calls",
        "queue_rows",
    ):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ServiceError(f"--{name.replace('_', '-')} {value:g}: give a number above 0")
    for name, least in (("drain_s", 0), ("grace_s", 0), ("max_change", 1)):
        value = getattr(args, name)
        if not value >= least:  # nor nan
            raise ServiceError(f"--{name.replace('_', '-')} {value:g}: give {least} or more")
    tls = Tls(args.tls_cert, args.tls_key, args.client_ca) if args.tls_cert else None
    return Options(
        host=args.host,
        port=args.port,
        allow_remote=args.allow_remote,
        tls=tls,
        tokens=args.tokens,
        rows_per_s=args.rows_per_s,
        queue_calls=args.queue_calls,
        queue_rows=args.queue_rows,
        outcomes=None if args.no_outcomes else args.outcomes or default_log(),
        access_log=args.access_log,
        false_alarm_outcomes=args.false_alarm_outcomes,
        drift_s=args.drift_s,
        poll_s=args.poll_s,
        max_change=args.max_change,
        drain_s=args.drain_s,
        grace_s=args.grace_s,
        shared_port=args.worker or args.workers > 1,
    )


def default_source(*, signed: bool = False) -> CheckoutSource:
    """Return what is served, and asked by `presage predict`, where no release is named.

    The champion of the configured registry; before there is one, the release that comes with
    Presage. ``signed`` fetches its signature too.
    """
    from presage.models.registry.uri import configured_uri
    from presage.models.release.pretrained import pretrained_release
    from presage.serving.predictor.release_follower import CheckoutSource

    return CheckoutSource(configured_uri(), pretrained_release(), signed=signed)


def _source(args: argparse.Namespace) -> Source:
    from presage.serving.predictor.release_follower import (
        FolderSource,
        RegistrySource,
        TrustedSource,
    )

    signed = bool(args.trusted_key)
    source: Source
    if args.release is not None:
        source = FolderSource(args.release)
    elif args.registry is not None:
        source = RegistrySource(args.registry, signed=signed)
    else:
        source = default_source(signed=signed)
    if not signed:
        return source
    from presage.models.release.signature import TrustedKeys  # imports cryptography

    return TrustedSource(source, TrustedKeys(args.trusted_key))


def _say(target: str, release_id: str) -> None:
    sys.stdout.write(f"serving release {release_id} on {target}\n")
    sys.stdout.flush()


Option = tuple[str, Callable[[str], Any], str, Any, str]


def _add(to: Any, title: str, options: Sequence[Option]) -> Any:
    """A group of options: name, type, placeholder, default, meaning."""
    group = to.add_argument_group(title)
    for name, kind, metavar, default, meaning in options:
        said = meaning if default is None else f"{meaning} ({default})"
        group.add_argument(name, type=kind, metavar=metavar, default=default, help=said)
    return group
