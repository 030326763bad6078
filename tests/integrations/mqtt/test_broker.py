"""URLs of brokers, prefixes and topics: what can be, and what is said of what cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt.errors import ConfigError
from agentrt.integrations.mqtt import Broker, read_broker
from agentrt.integrations.mqtt.topics import TopicPrefix, check_filter


def test_a_url_says_it_all() -> None:
    broker = read_broker("mqtt://me:s%40crit@example.org:1999/plants/one")
    assert (broker.host, broker.port, broker.user) == ("example.org", 1999, "me")
    assert (broker.password, broker.prefix.text) == ("s@crit", "plants/one")
    assert read_broker("mqtts://example.org").port == 8883
    assert read_broker("mqtt://example.org") == Broker("example.org")
    for prefix in ("mqtt://[::1]/a@b", "mqtt://me:12@[::1]/a@b", "mqtt://[::1]:12/a%40b"):
        assert read_broker(prefix).prefix.text == "a@b"


def test_a_password_comes_from_the_environment_and_is_never_printed() -> None:
    environment = {"AGENTRT_BROKER_PASSWORD": "secret"}
    broker = read_broker("mqtt://me@example.org", environment)
    assert broker.password == "secret"
    assert "secret" not in f"{broker} {broker!r}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.org", "write mqtt://"),
        ("example.org:1883", "is not a broker's address"),
        ("mqtt://", "is not a broker's address"),
        ("mqtt://u:secret@example.org:port", "its port is not a number"),
        ("mqtt://u:secret/x@example.org", "such as %2F for /"),
        ("mqtt://u:12/secret@example.org", "write / as %2F"),
        ("mqtt://u:/secret@example.org/prefix", "write / as %2F"),
        ("mqtt://[::1]:12/a@b", "@ as %40 in a prefix"),
        ("mqtt://u:1#secret@example.org", "has text after the prefix"),
        ("mqtt://u:[secret]@example.org", "must be written as %XX"),
        ("mqtt://u:secret\u2100@example.org", "must be written as %XX"),
        ("mqtt://example.org?x=1", "has text after the prefix"),
        ("mqtt://example.org/a/+/b", "'a/+/b' is not a prefix"),
        ("mqtt://example.org/{tenant}/{tenant}", "twice"),
        ("mqtt://example.org/{name}", "one of which may be {tenant}"),
    ],
)
def test_what_is_no_broker_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_broker(url)
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)


def test_files_for_tls_are_looked_at_at_once(tmp_path: Path) -> None:
    missing, broken = tmp_path / "missing.pem", tmp_path / "broken.pem"
    broken.write_text("no certificate")
    with pytest.raises(ConfigError, match="certificates need TLS"):
        read_broker("mqtt://example.org", ca=missing)
    with pytest.raises(ConfigError, match="set both, or neither"):
        read_broker("mqtts://example.org", cert=missing)
    for file in (missing, broken):
        with pytest.raises(ConfigError, match=f"{file} for TLS"):
            read_broker("mqtts://example.org", ca=file)


def test_a_prefix_may_differ_by_tenant() -> None:
    prefix = TopicPrefix("sites/{tenant}/agents")
    assert prefix.of("acme").worker("w") == "sites/acme/agents/workers/w"
    assert prefix.all().worker("+") == "sites/+/agents/workers/+"
    assert prefix.read("sites/acme/agents/workers/w") == ("acme", ["workers", "w"])
    assert TopicPrefix("a/b").read("a/b/workers/w") == ("default", ["workers", "w"])
    with pytest.raises(ConfigError, match="acme/"):
        prefix.of("acme/+")


@pytest.mark.parametrize("topic", ["plant/+/alarm", "plant/#", "#", "+", "/", "$SYS/broker/uptime"])
def test_filters_that_can_be(topic: str) -> None:
    check_filter(topic)


@pytest.mark.parametrize("topic", ["", "plant/#/alarm", "plant+", "a/b#", "$share/g/a", "a\0"])
def test_filters_that_cannot_be(topic: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid topic filter: "):
        check_filter(topic)
