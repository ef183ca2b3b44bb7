"""TLS, with and without clients' certificates, over gRPC and HTTP."""

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from blockyard.cluster.client import GenerationClient, ServerError, build_request
from blockyard.cluster.grpc_front import GrpcFront
from blockyard.cluster.http_front import HttpFront
from blockyard.cluster.tls import (
    TLS_CA_VARIABLE,
    TLS_CERT_VARIABLE,
    TLS_KEY_VARIABLE,
    BadTlsVariable,
    TlsFiles,
    channel_credentials,
    environment_context,
    environment_credentials,
)
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.scheduler.request import FinishReason


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, str]]:
    """Makes certificates: each name's own files, all signed by one authority in `ca.pem`."""
    folder = tmp_path_factory.mktemp("tls")
    now = datetime.now(UTC)

    def write(name: str, issuer: Any, signer: Any, own: Any, *, is_ca: bool) -> tuple[str, str]:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(own.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(signer, hashes.SHA256())
        )
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key.write_bytes(
            own.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return str(certificate), str(key)

    authority = ec.generate_private_key(ec.SECP256R1())
    write("ca", None, authority, authority, is_ca=True)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])

    def sign(name: str) -> tuple[str, str]:
        own = ec.generate_private_key(ec.SECP256R1())
        return write(name, issuer, authority, own, is_ca=False)

    return sign


@pytest.mark.parametrize("mutual", [False, True])
async def test_clients_are_served_in_secret_and_may_have_to_show_who_they_are(
    signed: Callable[[str], tuple[str, str]],
    dispatcher: Any,
    tokenizers: dict[str, ModelTokenizer],
    mutual: bool,
) -> None:
    dispatcher.script = [[65], FinishReason.STOP]
    certificate, key = signed("server")
    ca = str(Path(certificate).with_name("ca.pem"))
    files = TlsFiles(certificate, key, ca if mutual else None)
    files.check()
    grpc_front, http_front = GrpcFront(dispatcher, tokenizers), HttpFront(dispatcher, tokenizers)
    grpc_place = f"localhost:{await grpc_front.start('127.0.0.1:0', files)}"
    url = f"https://localhost:{await http_front.start('127.0.0.1', 0, files)}/v1/models"
    own = signed("client")
    context = ssl.create_default_context(cafile=ca)
    async with GenerationClient(grpc_place, 60, tls=channel_credentials(ca, *own)) as client:
        assert list((await client.generate(build_request(prompt="a"))).token_ids) == [65]
    if mutual:
        async with GenerationClient(grpc_place, 5, tls=channel_credentials(ca)) as stranger:
            with pytest.raises(ServerError):
                await stranger.generate(build_request(prompt="a"))
        async with httpx2.AsyncClient(verify=context, timeout=60) as web:
            with pytest.raises(httpx2.TransportError):
                await web.get(url)
        context.load_cert_chain(*own)
    async with httpx2.AsyncClient(verify=context, timeout=60) as web:
        assert (await web.get(url)).status_code == 200
    async with GenerationClient(grpc_place, 5) as clear:
        with pytest.raises(ServerError):
            await clear.generate(build_request(prompt="a"))
    await grpc_front.stop(None)
    await http_front.stop(None)


async def test_clients_take_their_files_from_the_environment(
    signed: Callable[[str], tuple[str, str]],
    dispatcher: Any,
    tokenizers: dict[str, ModelTokenizer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatcher.script = [[65], FinishReason.STOP]
    certificate, key = signed("server")
    ca = str(Path(certificate).with_name("ca.pem"))
    files = TlsFiles(certificate, key, ca)
    grpc_front, http_front = GrpcFront(dispatcher, tokenizers), HttpFront(dispatcher, tokenizers)
    place = f"localhost:{await grpc_front.start('127.0.0.1:0', files)}"
    url = f"https://localhost:{await http_front.start('127.0.0.1', 0, files)}/v1/models"
    for name, file in zip((TLS_CERT_VARIABLE, TLS_KEY_VARIABLE), signed("client"), strict=True):
        monkeypatch.setenv(name, file)
    monkeypatch.setenv(TLS_CA_VARIABLE, ca)
    async with GenerationClient(place, 60) as client:
        assert list((await client.generate(build_request(prompt="a"))).token_ids) == [65]
    context = environment_context()
    assert context is not None
    async with httpx2.AsyncClient(verify=context, timeout=60) as web:
        assert (await web.get(url)).status_code == 200
    await grpc_front.stop(None)
    await http_front.stop(None)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({TLS_CA_VARIABLE: "/nowhere"}, "cannot be used .*nowhere"),
        ({TLS_CERT_VARIABLE: "c"}, f"{TLS_CERT_VARIABLE} and {TLS_KEY_VARIABLE} go together"),
        ({TLS_CERT_VARIABLE: "c", TLS_KEY_VARIABLE: "k"}, f"without {TLS_CA_VARIABLE}"),
    ],
)
def test_variables_that_do_not_fit_are_refused(
    told: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert environment_credentials() is environment_context() is None
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    for asked in (environment_credentials, environment_context):
        with pytest.raises(BadTlsVariable, match=words):
            asked()


def test_files_that_do_not_fit_are_refused(
    signed: Callable[[str], tuple[str, str]],
) -> None:
    certificate, _ = signed("one")
    _, key = signed("other")
    with pytest.raises(ValueError, match="TLS files"):
        TlsFiles(certificate, key).check()
    with pytest.raises(OSError):
        TlsFiles(certificate, "/nowhere/key").check()
