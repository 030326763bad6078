"""Keys: hashed at rest, told apart, read again when the file changes; and bad files, told so."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.serving.tenants import KeyRing, Limits, SingleKey, new_key
from tests.doubles.forked_python import forked_python
from tests.serving.local import MODEL, open_server
from tests.serving.tenants.test_limits import Clock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_key_is_known_and_not_written_down(path: Path) -> None:
    first, second = new_key(path, "acme"), new_key(path, "acme")
    other = new_key(path, "other")
    ring = KeyRing(path)
    tenants = [ring.tenant_of(key) for key in (first, second, other)]
    assert tenants == ["acme", "acme", "other"]
    text = path.read_text(encoding="utf-8")
    assert not any(key.split("_", 2)[2] in text for key in (first, second, other))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_invalid_key_belongs_to_no_tenant(path: Path) -> None:
    key, other = new_key(path, "acme"), new_key(path, "other")
    ring = KeyRing(path)
    head, secret = key[:20], key[21:]
    wrong = [
        "",
        key[:-1],
        key + "x",
        f"{head}_{secret[::-1]}",
        "agentrt_" + "0" * 12 + "_" + secret,
    ]
    wrong += [f"{head}_{other[21:]}", "schlüssel", "Bearer " + key]
    assert {ring.tenant_of(bad) for bad in wrong} == {None}


def test_keys_that_are_made_at_the_same_time_are_all_stored(path: Path) -> None:
    """In this process and in others. Each read the file before the others had written it."""
    tenants = [f"tenant-{number}" for number in range(24)]
    python = forked_python()

    def made(tenant: str) -> str:
        if int(tenant[7:]) % 3:
            return new_key(path, tenant)
        command = ["-m", "agentrt.cli", "keys", "new", tenant, "--file", str(path)]
        run = subprocess.run([python, *command], stdout=subprocess.PIPE, text=True, check=True)
        return run.stdout.strip()

    with ThreadPoolExecutor(len(tenants)) as threads:
        keys = list(threads.map(made, tenants))
    ring = KeyRing(path)
    assert [ring.tenant_of(key) for key in keys] == tenants
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_change_while_the_file_is_read_is_seen_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is revoked in this moment stayed valid until the next change of the file."""
    clock = Clock()
    key, other = new_key(path, "acme"), new_key(path, "other")
    revoked = json.loads(path.read_text(encoding="utf-8"))
    revoked["tenants"]["acme"]["keys"] = []
    close = os.close

    def change_after(number: int) -> None:
        close(number)
        monkeypatch.setattr(os, "close", close)
        path.write_text(json.dumps(revoked), encoding="utf-8")

    monkeypatch.setattr(os, "close", change_after)
    ring = KeyRing(path, clock=clock)
    assert ring.tenant_of(key) == "acme"
    clock.now += 2.0
    assert ring.tenant_of(key) is None
    assert ring.tenant_of(other) == "other"


def test_the_file_is_read_again(path: Path) -> None:
    clock, said = Clock(), list[str]()
    old = new_key(path, "acme")
    ring = KeyRing(path, clock=clock, notice=said.append)
    fresh = new_key(path, "later")
    assert ring.tenant_of(fresh) is None
    clock.now += 2.0
    assert ring.tenant_of(fresh) == "later"
    path.write_text("{", encoding="utf-8")
    for _ in range(3):  # the same fault is reported once
        clock.now += 2.0
        assert ring.tenant_of(old) == "acme"
    path.unlink()
    for _ in range(3):
        clock.now += 2.0
        assert ring.tenant_of(old) == "acme"
    assert len(said) == 2
    assert "bad JSON" in said[0]
    assert "No such file" in said[1]
    document: dict[str, Any] = {"tenants": {"later": {"keys": [], "weight": 2, "operator": True}}}
    path.write_text(json.dumps(document), encoding="utf-8")
    clock.now += 2.0
    assert ring.tenant_of(old) is None
    assert ring.limits["later"] == Limits(weight=2)
    assert (ring.is_operator("later"), ring.is_operator("acme")) == (True, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "bad JSON"),
        ("[]", "must have the form"),
        ('{"tenants": {}}', "the file has no key"),
        ('{"tenants": {"two words": {}}}', "invalid tenant name"),
        ('{"tenants": {"a": []}}', r"tenants\.a: Input should be"),
        ('{"tenants": {"a": {"weight": 0}}}', "weight: Input should be greater than 0"),
        ('{"tenants": {"a": {"calls": null}}}', "calls: Input should be a valid integer"),
        ('{"tenants": {"a": {"calls": 1.5}}}', "calls: Input should be a valid integer"),
        (
            '{"tenants": {"a": {"operater": true}}}',
            "unknown field 'operater'; .*, operator, weight",
        ),
        ('{"tenants": {"a": {"keys": [{"id": "1"}]}}}', r"keys\.0\.salt: Field required"),
        (
            '{"tenants": {"a": {"keys": [{"id": "1", "salt": "x", "sha256": "y"}]}}}',
            r"keys\.0\.salt: String should match",
        ),
    ],
)
def test_an_invalid_key_file_is_refused(path: Path, text: str, says: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        KeyRing(path)


@pytest.mark.parametrize("tenant", ["3", '{"keys": 3}', '{"keys": {}}'])
def test_no_key_is_added_to_an_invalid_file(path: Path, tenant: str) -> None:
    text = f'{{"tenants": {{"a": {tenant}}}}}'
    path.write_text(text)
    with pytest.raises(ConfigError, match="the file has the form"):
        new_key(path, "a")
    assert path.read_text() == text


def test_null_is_no_limit_where_there_may_be_none(path: Path) -> None:
    names = ("concurrency", "threads", "assistants", "crons", "store_mib")
    new_key(path, "a")
    document = json.loads(path.read_text())
    document["tenants"]["a"].update(dict.fromkeys(names))
    path.write_text(json.dumps(document))
    limits = KeyRing(path).limits["a"]
    assert {name: getattr(limits, name) for name in names} == dict.fromkeys(names)


def test_the_error_of_a_missing_file_says_how_to_make_it(path: Path) -> None:
    with pytest.raises(ConfigError, match="agentrt keys new"):
        KeyRing(path)


def test_the_error_of_an_unreadable_file_does_not_advise_to_make_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: is a directory") as raised:
        KeyRing(tmp_path)
    assert "agentrt keys new" not in str(raised.value)


async def test_a_tenant_is_its_key_and_sees_its_own_only(path: Path) -> None:
    """Neither without a key, nor with another's, nor by a header that names another."""
    keys = {name: new_key(path, name) for name in ("a", "b")}
    ring = KeyRing(path)
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    async with open_server(keys=ring, limits_of=ring.limits, is_shared=True) as local:
        call = local.client.post
        for header in ({}, {"authorization": "Bearer x"}, {"x-agentrt-tenant": "a"}):
            refused = await call("/v1/chat/completions", json=chat, headers=header)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                401,
                "invalid_api_key",
            )
        for page in ("/health", "/dashboard", "/dashboard/main.js"):  # these rooms are not here
            assert (await local.client.get(page)).status_code == 404
        for page in ("/dashboardx", "/v1/models", "/openapi.json"):
            assert (await local.client.get(page)).status_code == 401
        tricky = "/dashboard%2f..%2fv1%2fmodels"
        assert (await local.client.get(tricky)).status_code == 404
        as_a = {"authorization": f"Bearer {keys['a']}", "x-agentrt-tenant": "b"}
        as_b = {"x-api-key": keys["b"]}
        session = (await call("/v1/client-runs", headers=as_a)).json()["id"]
        at = f"/v1/client-runs/{session}"
        assert (await local.client.get(at, headers=as_b)).status_code == 404
        assert (await local.client.delete(at, headers=as_b)).status_code == 404
        said = {**as_b, "x-agentrt-run": session}
        assert (await call("/v1/chat/completions", json=chat, headers=said)).status_code == 200
        mine = (await local.client.get(at, headers=as_a)).json()
        assert mine["calls"] == 0  # B's call was of a program of B's, of the same name
        assert sorted(row.tenant for row in local.runtime.table) == ["a", "b"]


async def test_the_key_of_the_environment_is_that_of_all_clients() -> None:
    keys = SingleKey("sk-mine", "default")
    async with open_server(keys=keys) as local:
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        for header, status in (
            ({}, 401),
            ({"authorization": "Bearer sk-other"}, 401),
            ({"x-agentrt-tenant": "default"}, 401),
            ({"authorization": "Bearer sk-mine", "x-agentrt-tenant": "other"}, 200),
            ({"x-api-key": "sk-mine"}, 200),
        ):
            answer = await local.client.post("/v1/chat/completions", json=chat, headers=header)
            assert answer.status_code == status
        assert {row.tenant for row in local.runtime.table} == {"default"}
    assert keys.is_operator("default")
    with pytest.raises(ConfigError):
        SingleKey("", "default")


async def test_a_salt_for_each_tenant() -> None:
    async with open_server(isolate=True) as local:
        for tenant in ("a", "b"):
            await local.chat("hi", headers={"x-agentrt-tenant": tenant})
        assert [call.spec.cache_salt for call in local.engine.calls] == ["a", "b"]
