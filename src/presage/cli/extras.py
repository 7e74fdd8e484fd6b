"""Extras to install for optional packages; imports none of them."""

from __future__ import annotations

# Names under which packages are imported, by the extra of pyproject.toml that has them.
_PACKAGES = {
    "cli": "typer rich yaml",
    "cluster": "flask werkzeug",
    "kubernetes": "kubernetes",
    "features": "onnx pyarrow pandas psutil",
    "postgres": "psycopg",
    "profile": "torch pynvml",
    "ray": "ray",
    "schedulers": "sortedcontainers jinja2",
    "serve": "onnxruntime grpc_health grpc_reflection prometheus_client uvloop",
    "otel": "opentelemetry",
    "sign": "cryptography",
    "train": "sklearn joblib onnxscript mlflow dvc",
}
EXTRA_OF = {package: extra for extra, row in _PACKAGES.items() for package in row.split()}


def how_to_install(error: ModuleNotFoundError) -> str | None:
    """Return how to install a package of one of the extras; None for another package."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package)
    if extra is None:
        return None
    return f"the package {package!r} is not installed; pip install 'presage[{extra}]'"
