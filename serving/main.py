"""``presage serve``: the prediction server's command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from presage.errors import PresageError
from presage.serving.arguments import options_of, parser
from presage.system.text.printable import error_line

if TYPE_CHECKING:
    import argparse

    from presage.serving.predictor.release_follower import CheckoutSource, Source


def main(argv: Sequence[str] | None = None) -> None:
    """Run the server; an error that the user can fix is one line, with exit status 1."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(words)
    try:
        _serve(args, words)
    except (PresageError, OSError) as error:
        sys.stderr.write(f"error: {error_line(error)}\n")
        sys.exit(1)


def _serve(args: argparse.Namespace, words: Sequence[str]) -> None:
    if args.devices is not None:
        from presage.features.device.device import load_device_file

        load_device_file(args.devices)
    options = options_of(args)
    if args.workers > 1:
        from presage.serving.server.server_workers import run_workers

        run_workers(args.workers, words, options, args.metrics_port)
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


def default_source(*, signed: bool = False) -> CheckoutSource:
    """Return the default release of `presage serve` and `presage predict`.

    It is the champion of the configured registry, or the pretrained release if there is none.
    ``signed`` downloads the signature too.
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
