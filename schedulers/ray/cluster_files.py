"""Files of a live cluster on Ray: tokens, certificate, and what clients need to connect."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from presage.errors import ConfigError, one_line
from presage.schedulers.ray.node_actor import RayNode
from presage.serving.authentication.local_token import account
from presage.serving.authentication.token_file import add_token
from presage.system.files.atomic_file import replace_text

_VALID = timedelta(days=365)


class ClusterFiles:
    """Files in the state folder of the driver; tokens and certificate are new at each start.

    Parameters
    ----------
    folder : Path
        State folder, which only its owner can read.
    host : str
        Address of the controller as the nodes know it, which the certificate names.

    Raises
    ------
    ConfigError
        The folder cannot be written, or the package ``cryptography`` is not installed.
    """

    def __init__(self, folder: Path, host: str, port: int) -> None:
        self.folder = folder
        self.tokens, self.certificate = folder / "tokens", folder / "controller.pem"
        self.key, self.environment = folder / "controller.key", folder / "environment"
        self._node_tokens: dict[str, str] = {}
        try:
            self._write(host, port)
        except OSError as error:
            raise ConfigError(
                f"--state {folder}: cannot be written ({one_line(error)}); name another folder"
            ) from error

    def node_token(self, node: RayNode) -> str:
        """Return the token of a node's agent."""
        if node.name not in self._node_tokens:
            counts = ",".join(f"{quote(kind, safe='')}:{n}" for kind, n in node.devices.items())
            limits = {"node": node.name, "devices": counts}
            self._node_tokens[node.name] = add_token(self.tokens, node.name, ["agent"], limits)
        return self._node_tokens[node.name]

    def _write(self, host: str, port: int) -> None:
        certificate, key = self_signed(host)
        replace_text(self.key, key)
        replace_text(self.certificate, certificate)
        replace_text(self.tokens, "")
        limits = {"run-as": account()}
        token = add_token(self.tokens, "user", ["view", "submit", "admin"], limits)
        replace_text(self.folder / "user.token", token)
        variables = {
            "PRESAGE_CLUSTER": f"{host}:{port}",
            "PRESAGE_CLUSTER_CA": str(self.certificate),
            "PRESAGE_CLUSTER_TOKEN_FILE": str(self.folder / "user.token"),
        }
        replace_text(self.environment, _exports(variables))


def self_signed(host: str) -> tuple[str, str]:
    """Return a certificate for a host name or an IP address and its private key, as PEM.

    Raises
    ------
    ConfigError
        The package ``cryptography`` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ModuleNotFoundError:
        raise ConfigError(
            "the package 'cryptography' is not installed, which encrypts the connections of "
            "agents; pip install 'presage[cluster]'"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    try:
        alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        alternative = x509.DNSName(host)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of nodes differ
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoded_key = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), encoded_key.decode()


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
