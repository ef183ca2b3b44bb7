"""TLS for clients: a server's certificate, and perhaps whose certificates clients must show.

Ray Serve's own gRPC listener has none of this; the ingress's own listeners do. Knows no server.
"""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

__all__ = [
    "TLS_CA_VARIABLE",
    "TLS_CERT_VARIABLE",
    "TLS_KEY_VARIABLE",
    "BadTlsVariable",
    "TlsFiles",
    "channel_credentials",
    "environment_context",
    "environment_credentials",
]

TLS_CA_VARIABLE = "BLOCKYARD_TLS_CA"
"""File of the certificates that clients trust a server by; set, they speak TLS."""

TLS_CERT_VARIABLE = "BLOCKYARD_TLS_CERT"
"""File of the certificate that clients show a server that asks for one."""

TLS_KEY_VARIABLE = "BLOCKYARD_TLS_KEY"
"""File of that certificate's private key."""


class BadTlsVariable(Exception):
    """The environment names files for TLS that no client could use."""


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
        BadTlsVariable: its files cannot be used.
    """
    files = _environment_files()
    if files is None:
        return None
    _context(*files)  # gRPC would tell of files that it cannot use in its log alone
    return channel_credentials(*files)


def environment_context() -> ssl.SSLContext | None:
    """The same for a client of HTTP; None for what the system trusts.

    Raises:
        BadTlsVariable: its files cannot be used.
    """
    files = _environment_files()
    return _context(*files) if files is not None else None


def _environment_files() -> tuple[str, str | None, str | None] | None:
    names = (TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_KEY_VARIABLE)
    ca_file, certificate, key = (os.environ.get(name) or None for name in names)
    if (certificate is None) is not (key is None):
        raise BadTlsVariable(f"{TLS_CERT_VARIABLE} and {TLS_KEY_VARIABLE} go together; set both")
    if ca_file is None:
        if certificate is not None:
            raise BadTlsVariable(
                f"{TLS_CERT_VARIABLE} is set without {TLS_CA_VARIABLE}, the certificates to trust "
                "a server by; set both"
            )
        return None
    return ca_file, certificate, key


def _context(ca_file: str, certificate: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:  # what ssl itself complains about is one, too
        files = ", ".join(name for name in (ca_file, certificate, key) if name is not None)
        raise BadTlsVariable(
            f"the files of {TLS_CA_VARIABLE}, {TLS_CERT_VARIABLE} and {TLS_KEY_VARIABLE} cannot be "
            f"used ({files}): {error}"
        ) from None
    return context
