"""Certificates for tests, made by openssl: of an authority, servers and clients."""

import subprocess
from pathlib import Path


def make_authority(folder: Path, name: str) -> tuple[Path, Path]:
    """Write the certificate and key of an authority."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _openssl(
        "req", "-x509", *_NEW, "-keyout", key, "-out", certificate, "-subj", f"/CN={name}",
        "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE",
    )  # fmt: skip
    return certificate, key


def make_certificate(
    folder: Path, name: str, authority: tuple[Path, Path], *, days: int = 2
) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and that name, and its key."""
    certificate, key, asked = (folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:{name}\n")
    _openssl("req", *_NEW, "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
    _openssl(
        "x509", "-req", "-in", asked, "-CA", authority[0], "-CAkey", authority[1],
        "-CAcreateserial", "-out", certificate, "-days", str(days), "-extfile", extensions,
    )  # fmt: skip
    return certificate, key


_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
