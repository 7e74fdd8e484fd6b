"""Reference pages that are generated from the code: commands, protocols, metrics, settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

ROOT = Path(__file__).parents[2]
GENERATED = (
    "benchmarks/index.md",
    "decisions/index.md",
    "reference/commands.md",
    "reference/metrics.md",
    "reference/parameters.md",
    "reference/protocols.md",
)
PROTOS = (
    "serving/v1/prediction.proto",
    "schedulers/v1/cluster.proto",
    "collectives/v1/arbiter.proto",
)


def pages() -> dict[str, str]:
    """Return the generated pages by their names."""
    texts = (
        index_page("benchmarks", "Benchmarks", "What was measured, by programs in `benchmarks/`."),
        index_page(
            "decisions", "Decisions", "Decisions with their reasons, alternatives and figures."
        ),
        commands_page(),
        metrics_page(),
        parameters_page(),
        protocols_page(),
    )
    return dict(zip(GENERATED, texts, strict=True))


def index_page(folder: str, title: str, text: str) -> str:
    """Return a list of the pages of a folder by their titles."""
    lines = [f"# {title}", "", text, ""]
    for path in sorted((ROOT / "docs" / folder).glob("*.md")):
        first = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{first}]({path.name})")
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Return the help of all commands."""
    os.environ["COLUMNS"] = "80"
    from presage.cli.app import app
    from presage.cli.help_text import command_of, page_of

    lines = [
        "# Commands",
        "",
        "The help of all commands, as `presage COMMAND --help` prints it.",
        "",
    ]
    for command, context in _commands(command_of(app), None, "presage"):
        depth = min(context.command_path.count(" ") + 2, 4)
        lines += ["#" * depth + f" {context.command_path}", "", "```text"]
        lines += [page_of(command, context).strip("\n"), "```", ""]
    return "\n".join(lines)


def _commands(command: Any, parent: Any, name: str) -> Iterator[tuple[Any, Any]]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield command, context
    for child_name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, context, child_name)


def protocols_page() -> str:
    """Return the protocol files."""
    lines = [
        "# Protocols",
        "",
        "gRPC services and messages. Within a version, fields are only added.",
        "",
    ]
    for path in PROTOS:
        lines += [f"## {path}", "", "```proto", (ROOT / path).read_text().strip("\n"), "```", ""]
    return "\n".join(lines)


def metrics_page() -> str:
    """Return the Prometheus metrics of the servers, and the fields of the extender's status."""
    from presage.collectives.arbiter.server.arbiter_metrics import ArbiterCollector
    from presage.schedulers.kubernetes.extender.extender_server import STATUS_FIELDS
    from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
    from presage.serving.server.prometheus_metrics import Metrics

    controller = CollectorRegistry()
    ClusterMetrics(controller)
    lines = ["# Metrics", "", "Prometheus metrics. The port is the option `--metrics-port`.", ""]
    for title, metrics in (
        ("Servers", Metrics().registry.collect()),
        ("Controller of a live cluster", controller.collect()),
        ("Arbiter of switches", ArbiterCollector.describe()),
    ):
        lines += [f"## {title}", "", "| metric | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{metric.name}` | {metric.type} | {metric.documentation} |"
            for metric in sorted(metrics, key=lambda metric: metric.name)
        ]
        lines.append("")
    lines += ["## Extender of kube-scheduler", ""]
    lines += ["It has no Prometheus metrics. `GET /status` returns JSON with these fields:", ""]
    lines += ["| field | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in STATUS_FIELDS.items()]
    return "\n".join([*lines, ""])


def parameters_page() -> str:
    """Return the parameters of the pipeline."""
    text = (ROOT / "params.yaml").read_text().strip("\n")
    return f"# Parameters of the pipeline\n\n`params.yaml`:\n\n```yaml\n{text}\n```\n"
