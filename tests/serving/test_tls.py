"""A server that is reached over TLS, and files that cannot be used for it."""

from __future__ import annotations

import re
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agentrt import Runtime
from agentrt.errors import ConfigError
from agentrt.serving.listen import Certificate, Listener
from agentrt.serving.observability import api as observability
from agentrt.serving.server import Server
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.watchdog import opened_app


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate for the address of the tests."""
    folder = tmp_path_factory.mktemp("tls")
    chain, key = folder / "chain.pem", folder / "key.pem"
    made(chain, key, "-nodes")
    return Certificate(chain, key)


def made(chain: Path, key: Path, *how: str) -> None:
    new = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    name = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(chain))
    subprocess.run([*new, *name, *files, *how], check=True, capture_output=True)


async def test_the_server_answers_only_over_tls(certificate: Certificate) -> None:
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("scripted",))
        listener = Listener("127.0.0.1", 0, certificate)
        assert listener.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=certificate.chain)
        plain = listener.url.replace("https", "http")
        async with (
            opened_app(server, [observability]) as app,
            listener.serving(app, server.bounds),
            httpx.AsyncClient(base_url=listener.url, verify=trusted, timeout=60) as client,
            httpx.AsyncClient(base_url=plain, timeout=60) as stranger,
        ):
            assert (await client.get("/health")).json() == {"status": "ok"}
            here = {"origin": listener.url}
            assert (await client.get("/v1/runs", headers=here)).status_code == 200
            with pytest.raises(httpx.TransportError):
                await stranger.get("/health")


@pytest.mark.parametrize("requests", [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED])
async def test_clients_need_a_certificate_of_an_authority(
    certificate: Certificate, tmp_path: Path, requests: ssl.VerifyMode
) -> None:
    """An optional one must be valid, too. The server's certificate is its own authority here."""
    made(tmp_path / "other.pem", tmp_path / "other.key", "-nodes")
    own = replace(certificate, authorities=certificate.chain, requests=requests)

    def client(
        listener: Listener, chain: Path | None = None, key: Path | None = None
    ) -> httpx.AsyncClient:
        context = ssl.create_default_context(cafile=certificate.chain)
        if chain is not None:
            context.load_cert_chain(chain, key)
        return httpx.AsyncClient(base_url=listener.url, verify=context, timeout=60)

    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("scripted",))
        listener = Listener("127.0.0.1", 0, own)
        async with (
            opened_app(server, [observability]) as app,
            listener.serving(app, server.bounds),
            client(listener, certificate.chain, certificate.key) as known,
            client(listener) as nobody,
            client(listener, tmp_path / "other.pem", tmp_path / "other.key") as other,
        ):
            assert (await known.get("/health")).json() == {"status": "ok"}
            with pytest.raises(httpx.TransportError):
                await other.get("/health")
            if requests is ssl.CERT_OPTIONAL:
                assert (await nobody.get("/health")).json() == {"status": "ok"}
            else:
                with pytest.raises(httpx.TransportError):
                    await nobody.get("/health")


def test_a_chain_may_hold_its_key(certificate: Certificate, tmp_path: Path) -> None:
    assert certificate.key is not None
    both = tmp_path / "both.pem"
    both.write_text(certificate.chain.read_text("utf-8") + certificate.key.read_text("utf-8"))
    Certificate(both).check()


def test_files_that_cannot_be_used_are_refused_with_the_way_out(
    certificate: Certificate, tmp_path: Path
) -> None:
    missing, junk, locked = (tmp_path / name for name in ("missing", "junk", "locked"))
    junk.write_text("no certificate")
    made(tmp_path / "chain", locked, "-passout", "pass:secret")
    made(tmp_path / "other chain", tmp_path / "other", "-nodes")
    rsa = tmp_path / "rsa"
    subprocess.run(["openssl", "genrsa", "-out", str(rsa)], check=True, capture_output=True)
    cases = {
        Certificate(missing): f"--ssl-certfile {missing}: no such file",
        Certificate(junk): "not a certificate with its key in PEM format",
        Certificate(certificate.chain): "not a certificate with its key",
        Certificate(
            certificate.chain, tmp_path / "other"
        ): "the key belongs to another certificate",
        Certificate(certificate.chain, rsa): "the key belongs to another certificate",
        Certificate(tmp_path / "chain", locked): "the key has a password",
        Certificate(certificate.chain, locked.with_name("chain")): "not a certificate with its key",
        replace(certificate, authorities=missing): f"--ssl-ca-certs {missing}: no such file",
        replace(certificate, authorities=junk): f"--ssl-ca-certs {junk}: not certificates in PEM",
    }
    for case, why in cases.items():
        with pytest.raises(ConfigError, match=re.escape(why)):
            Listener("127.0.0.1", 0, case)
