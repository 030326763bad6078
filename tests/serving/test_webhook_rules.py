"""Which hosts webhooks may call, by the operator's options and a project's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import AgentrtError
from agentrt.serving.webhook_rules import WebhookRules, host_of, read_webhooks


@pytest.mark.parametrize(
    ("hosts", "url", "says"),
    [
        ((), "http://127.0.0.1/", "--webhook-host"),
        (("a.example",), "http://b.example/", "'b.example' is not allowed"),
        (("*.a.example",), "http://a.example/", "is not allowed"),
        (("*.a.example",), "http://bada.example/", "is not allowed"),
        (("a.example",), "http://a.example.evil.example/", "is not allowed"),
        (("a.example",), "http://evil.example#a.example", "is not allowed"),
        (
            ("a.example",),
            "http://a.example@evil.example/",
            "must not have a user name or a password",
        ),
        (("*",), "http://u:p@a.example/", "must not have a user name or a password"),
        (("*",), "http://u:secret/x@a.example/", "such as %2F for /"),
        (("*",), "ftp://a.example/", "https or http"),
        (("*",), "/runs", "complete URL"),
        (("*",), "http://", "complete URL"),
        (("*",), "http://[::1", "invalid URL"),
        (("*",), "http://a.example/" + "x" * 3000, "2048 characters"),
    ],
)
async def test_a_url_that_may_not_be_called_is_refused(
    hosts: tuple[str, ...], url: str, says: str
) -> None:
    with pytest.raises(ValueError, match=says) as raised:
        WebhookRules(hosts).read(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("url", ["https://xn--bcher-kva.example/", "https://bücher.example/"])
def test_a_name_beyond_ascii_is_that_of_dns(url: str) -> None:
    read = WebhookRules(("xn--bcher-kva.example",)).read(url)
    assert host_of(read) == "xn--bcher-kva.example"


def test_an_address_is_a_host_too() -> None:
    assert host_of(WebhookRules(("::1",)).read("http://[::1]:80/")) == "::1"


def test_ports_and_schemes_can_be_fewer() -> None:
    rules = WebhookRules(("*",), https=True, ports=(443,))
    assert rules.read("https://a.example/x").path == "/x"
    for url in ("http://a.example/", "https://a.example:8443/"):
        with pytest.raises(ValueError, match=r"https|8443"):
            rules.read(url)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.9.9", "100.64.0.1", "0.0.0.0", "::1"),
        *("169.254.169.254", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "224.0.0.1"),
        *("64:ff9b::a00:1", "2002:a00:1::", "::", "240.0.0.1"),
    ],
)
def test_any_host_is_not_the_own_network(address: str) -> None:
    """A host that was named may be there, but for what is on this link or nowhere."""
    with pytest.raises(ValueError, match="may not be called"):
        WebhookRules(("*", "*.example")).check_address("a.example", address)
    nowhere = ("169.254", "fe80", "224.", "0.0.0.0", "::")
    named = WebhookRules(("a.example",))
    if address.startswith(nowhere[:4]) or address == "::":
        with pytest.raises(ValueError, match="may not be called"):
            named.check_address("a.example", address)
    else:
        named.check_address("a.example", address)


# -- settings -----------------------------------------------------------------------------


def test_a_project_names_hosts_and_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LG_WEBHOOK_TOKEN", "t")
    section = {
        "url": {"allowed_domains": ["*.Example.com"], "allowed_ports": [443]},
        "headers": {"authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}", "x-list": "a;\tb"},
    }
    rules = read_webhooks(["own.example", "[::1]"], [_project(tmp_path, section)])
    assert rules.hosts == ("own.example", "::1", "*.example.com")
    assert (rules.https, rules.ports) == (True, (443,))
    assert rules.headers == {"authorization": "Bearer t", "x-list": "a;\tb"}
    rules.read("https://a.example.com/")
    assert read_webhooks(["*"], []) == WebhookRules(("*",))


@pytest.mark.parametrize(
    ("hosts", "section", "says"),
    [
        (["http://a.example"], {}, "--webhook-host 'http://a.example': invalid host"),
        (["a.example:80"], {}, "without scheme and port"),
        ([], {"url": {"allowed_domains": "a"}}, "url.allowed_domains"),
        ([], {"url": {"allowed_domains": ["a b"]}}, "webhooks: 'a b': invalid host"),
        ([], {"urls": {}}, "webhooks.urls: Extra"),
        (
            [],
            {"headers": {"a": "${{ env.HOME }}"}},
            "HOME must be set, and its name must begin with LG_WEBHOOK_",
        ),
        ([], {"headers": {"a": "${{ env.LG_WEBHOOK_NONE }}"}}, "LG_WEBHOOK_NONE must be set"),
        ([], {"headers": {"a": "secret\n"}}, "'a': its value begins or ends with a blank"),
        ([], {"headers": {"a": "secret "}}, "'a': its value begins or ends with a blank"),
        ([], {"headers": {"a": "secrét"}}, "'a': its value has a line break, or a"),
        ([], {"headers": {"a": "sec\nret"}}, "'a': its value has a line break, or a"),
        ([], {"headers": {"a b": "x"}}, "'a b': a header's name has only letters"),
        ([], {"headers": {"Host": "x"}}, "'Host': agentrt sets this header itself"),
    ],
)
def test_invalid_settings_get_an_error(
    tmp_path: Path, hosts: list[str], section: dict[str, Any], says: str
) -> None:
    with pytest.raises(AgentrtError, match=says.replace("{", "\\{").replace("(", "\\(")) as raised:
        read_webhooks(hosts, [_project(tmp_path, section)])
    assert "secr" not in str(raised.value)


def _project(folder: Path, section: dict[str, Any]) -> Path:
    path = folder / "langgraph.json"
    path.write_text(json.dumps({"graphs": {}, "webhooks": section}))
    return path
