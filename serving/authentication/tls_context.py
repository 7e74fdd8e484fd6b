"""TLS of HTTP servers."""

from __future__ import annotations

import ssl

from presage.errors import ServiceError
from presage.serving.server_options import Tls


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of a server; with a client CA, it requires client certificates.

    Raises
    ------
    ServiceError
        A file cannot be read or is invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With the empty password, a key with a passphrase fails instead of prompting for it.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except OSError as error:
        raise ServiceError(
            f"--tls-cert {tls.certificate}, --tls-key {tls.key}: cannot be loaded ({error}); give "
            "a certificate and its key in PEM, the key without a passphrase"
        ) from error
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except OSError as error:
            raise ServiceError(
                f"--client-ca {tls.client_ca}: cannot be loaded ({error}); give the authority's "
                "certificate in PEM"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
