"""``presage serve``: the prediction server."""

from __future__ import annotations

import typer

from presage.cli.command import command


@command(
    examples="presage serve --port 50051",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(context: typer.Context) -> None:
    """Serve predictions over gRPC until SIGTERM or Ctrl-C."""
    # It parses its own options: a serving image has neither typer nor rich.
    from presage.serving.main import main as serve_main

    serve_main(context.args)
