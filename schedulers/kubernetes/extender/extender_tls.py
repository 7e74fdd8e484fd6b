"""TLS of the extender's server."""

from __future__ import annotations

import ssl

from presage.errors import ServiceError
from presage.serving.server_options import Tls


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a server that asks clients for certificates where there is a CA.

    Raises
    ------
    ServiceError
        A file cannot be read or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password, or a key that has a passphrase would ask the terminal for it.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        raise ServiceError(
            f"--tls-cert {tls.certificate}, --tls-key {tls.key}: cannot be used ({error}); give a "
            "certificate and the key that goes with it in PEM, the key without a passphrase"
        ) from error
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except OSError as error:
            raise ServiceError(
                f"--client-ca {tls.client_ca}: cannot be used ({error}); give the authority's "
                "certificate, in PEM"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
