"""TLS for clients: a server's certificate, and perhaps whose certificates clients must show.

Ray Serve's own gRPC listener has none of this; the ingress's own listeners do. Knows no server.
"""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

__all__ = ["TLS_CA_VARIABLE", "TlsFiles", "channel_credentials", "environment_credentials"]

TLS_CA_VARIABLE = "BLOCKYARD_TLS_CA"
"""File of the certificates that clients trust a server by; set, they speak TLS."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Files in PEM format, on the ingress's node.

    Attributes:
        certificate: the server's, with those that it depends on.
        key: the certificate's private key.
        client_ca: who must have signed the clients' certificates; None asks clients for none.
    """

    certificate: str
    key: str
    client_ca: str | None = None

    def grpc_credentials(self) -> Any:
        """For a gRPC server's port. Raises `OSError`."""
        pair = (Path(self.key).read_bytes(), Path(self.certificate).read_bytes())
        client_ca = Path(self.client_ca).read_bytes() if self.client_ca is not None else None
        return grpc.ssl_server_credentials((pair,), client_ca, self.client_ca is not None)

    def http_options(self) -> dict[str, Any]:
        """For an HTTP server, as uvicorn calls them."""
        asked = ssl.CERT_REQUIRED if self.client_ca is not None else ssl.CERT_NONE
        return {
            "ssl_certfile": self.certificate,
            "ssl_keyfile": self.key,
            "ssl_ca_certs": self.client_ca,
            "ssl_cert_reqs": asked,
        }

    def check(self) -> None:
        """Refuse files that no server could use. Raises `ValueError` or `OSError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
        except ssl.SSLError as error:
            raise ValueError(f"the TLS files cannot be used: {error}") from None


def channel_credentials(
    ca_file: str, certificate: str | None = None, key: str | None = None
) -> Any:
    """For a client: whom it trusts, and what it shows a server that asks. Raises `OSError`."""
    shown = {
        "private_key": Path(key).read_bytes() if key is not None else None,
        "certificate_chain": Path(certificate).read_bytes() if certificate is not None else None,
    }
    return grpc.ssl_channel_credentials(Path(ca_file).read_bytes(), **shown)


def environment_credentials() -> Any:
    """What the environment says: credentials of `channel_credentials`, or None for no TLS.

    Raises:
        OSError: the file that it names cannot be read.
    """
    ca_file = os.environ.get(TLS_CA_VARIABLE)
    return channel_credentials(ca_file) if ca_file else None
