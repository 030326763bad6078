"""What the environment says of proxies and certificates, for each client of ours."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import httpx2
import pytest

from agentrt.errors import ConfigError
from agentrt.proxies import bypass_proxies, client_options, environment_fault, is_own, proxy_for

NAMES = (
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "ssl_cert_file",
    "ssl_cert_dir",
    "sslkeylogfile",
)
FAR = "http://example.org/v1"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        for spelt in (name, name.upper()):
            monkeypatch.delenv(spelt, raising=False)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server of this machine's."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()


WRONG = [
    ("ALL_PROXY", "socks://127.0.0.1:9/"),
    ("all_proxy", "socks5://127.0.0.1:9"),
    ("HTTP_PROXY", "http://127.0.0.1:9"),
    ("http_proxy", "http://127.0.0.1:port"),
    ("HTTPS_PROXY", "foo:bar"),
    ("NO_PROXY", "[::1]"),
    ("NO_PROXY", "localhost,[fe80::1]:80,,"),
    ("SSL_CERT_FILE", "/nonexistent"),
    ("SSL_CERT_DIR", "/nonexistent"),
    ("SSLKEYLOGFILE", "/nonexistent/keys"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_this_machine_is_reached_whatever_the_variables_say(
    monkeypatch: pytest.MonkeyPatch, server: str, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    options = client_options(server)
    with httpx.Client(**options) as client:
        assert client.get(server).text == "here"
    with httpx2.Client(**options) as newer:
        assert newer.get(server).text == "here"


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "a.localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.1", "0.0.0.0"),
        *("::1", "[::1]", "::ffff:127.0.0.1", socket.gethostname()),
    ],
)
def test_addresses_of_this_machine(host: str) -> None:
    assert is_own(host)


@pytest.mark.parametrize("host", ["example.org", "localhost.org", "203.0.113.7", "2001:db8::1"])
def test_addresses_of_other_machines(host: str) -> None:
    assert not is_own(host)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "ALL_PROXY",
            "socks://127.0.0.1:9/",
            "must begin with one of http://, https://, socks5://",
        ),
        ("http_proxy", "http://127.0.0.1:port", "its port is not a number"),
        ("http_proxy", "http://127.0.0.1:99999", "a number from 0 to 65535"),
        ("HTTP_PROXY", "http://", "must begin with one of http://"),
        ("all_proxy", "ftp://10.0.0.1", "must begin with one of http://"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as raised:
        client_options(FAR)
    text = str(raised.value)
    assert text.startswith(f"{name}={value!r}: ")
    assert words in text
    assert text.endswith(f"set {name} to http://HOST:PORT, or unset it")
    assert environment_fault(FAR) == text


@pytest.mark.parametrize("password", ["secret/x", "[secret]", "secret\u2100"])
def test_the_password_of_a_proxy_or_a_server_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    """Not even if a character of it cannot be in a URL, so that a part of it looks like a port."""
    url = f"ftp://user:{password}@10.0.0.1"
    with pytest.raises(ConfigError, match=r"'ftp://…@10.0.0.1' is not a URL: ") as raised:
        client_options(url)
    assert "secret" not in str(raised.value)
    monkeypatch.setenv("ALL_PROXY", url)
    with pytest.raises(ConfigError, match=r"ALL_PROXY='ftp://…@10.0.0.1': ") as raised:
        client_options(FAR)
    assert "secret" not in str(raised.value)


def test_a_password_of_a_proxy_that_looks_like_a_port_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:12/secret@10.0.0.1:3128")
    with pytest.raises(ConfigError, match=r"HTTP_PROXY='http://…@10.0.0.1:3128': .*%2F") as raised:
        client_options(FAR)
    assert "secret" not in str(raised.value)


def test_socks_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.proxies.find_spec", lambda name: None)
    monkeypatch.setenv("ALL_PROXY", "socks5://user:secret@10.0.0.1:1080")
    with pytest.raises(ConfigError, match="needs the package socksio") as raised:
        proxy_for(FAR)
    assert "secret" not in str(raised.value)


def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "text.pem").write_text("no certificate", encoding="utf-8")
    for file, words in (("none.pem", "No such file"), ("text.pem", "no certificate in PEM form")):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / file))
        with pytest.raises(ConfigError, match=f"SSL_CERT_FILE='.*{file}': .*{words}"):
            client_options("https://example.org")
        assert client_options(FAR)["verify"] is True
    monkeypatch.delenv("SSL_CERT_FILE")
    for folder in (tmp_path / "none", tmp_path / "text.pem"):
        monkeypatch.setenv("SSL_CERT_DIR", str(folder))
        with pytest.raises(ConfigError, match=f"SSL_CERT_DIR='{folder}': there is no such folder"):
            client_options("https://example.org")
        assert client_options(FAR)["verify"] is True
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'none'}:{tmp_path}")
    assert isinstance(client_options("https://example.org")["verify"], ssl.SSLContext)


def test_a_file_for_keys_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python opens it with each TLS context."""
    monkeypatch.setenv("SSLKEYLOGFILE", "/nonexistent/keys")
    with pytest.raises(ConfigError, match=r"^SSLKEYLOGFILE='/nonexistent/keys': .* cannot be writ"):
        client_options("https://example.org")


@pytest.mark.parametrize(
    ("exempt", "proxied"),
    [
        ("", True),
        ("example.org", False),
        (".org", False),
        ("*", False),
        ("ample.org", True),
        ("EXAMPLE.org:80, other", True),
        ("example.org:8080", False),
        ("[::1],example.org", False),
        ("*.org", False),
        ("*.example.org", False),
        ("other example.org", False),
        ("other\texample.org:8080 ,", False),
        (".", True),
        ("*.", True),
    ],
)
def test_no_proxy_names_hosts(monkeypatch: pytest.MonkeyPatch, exempt: str, proxied: bool) -> None:
    monkeypatch.setenv("HTTP_PROXY", "10.0.0.1:3128")
    monkeypatch.setenv("NO_PROXY", exempt)
    expected = "http://10.0.0.1:3128" if proxied else None
    assert proxy_for("http://example.org:8080/v1") == expected


@pytest.mark.parametrize(
    ("url", "exempt", "proxied"),
    [
        ("http://example.org/v1", "example.org:80", False),
        ("https://example.org/v1", "example.org:443", False),
        ("https://example.org/v1", "example.org:80", True),
        ("http://example.org./v1", "example.org", False),
        ("http://example.org:99999/v1", "example.com", True),
    ],
)
def test_no_proxy_names_ports_that_urls_leave_out(
    monkeypatch: pytest.MonkeyPatch, url: str, exempt: str, proxied: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", "10.0.0.1:3128")
    monkeypatch.setenv("NO_PROXY", exempt)
    assert proxy_for(url) == ("http://10.0.0.1:3128" if proxied else None)


def test_no_proxy_names_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://10.0.0.1:3128")
    monkeypatch.setenv("no_proxy", "203.0.113.0/24,[2001:db8::1]")
    assert proxy_for("http://203.0.113.9") is None
    assert proxy_for("https://[2001:db8::1]:8000") is None
    assert proxy_for("https://[2001:db8::2]:8000") == "http://10.0.0.1:3128"


def test_libraries_of_others_are_told_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    bypass_proxies("http://127.0.0.1:4317")
    assert os.environ["no_proxy"] == "", "there is no proxy"
    monkeypatch.setenv("HTTP_PROXY", "http://10.0.0.1:3128")
    monkeypatch.setenv("NO_PROXY", "example.org")
    bypass_proxies(FAR)
    bypass_proxies("http://127.0.0.1:4317")
    bypass_proxies("http://127.0.0.1:4318")
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "example.org,127.0.0.1"


def test_brackets_break_libraries_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "[::1]")
    assert environment_fault(FAR) == (
        "NO_PROXY='[::1]': addresses in this variable have no brackets; write ::1, not [::1]"
    )
