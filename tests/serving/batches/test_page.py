"""The example of batches over HTTP in docs/batches.md works."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.pages import blocks
from tests.serving.batches.client import serve_batches
from tests.serving.local import MODEL, SAYS


async def test_the_page_by_openais_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = blocks("batches.md")[4], blocks("batches.md", "json")[2]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requests.jsonl").write_text(line.replace('"m"', f'"{MODEL}"'))
    async with serve_batches(tmp_path) as server:
        code = code.replace("http://127.0.0.1:8000", server.local.url).replace(
            "sleep(5)", "sleep(0)"
        )
        await asyncio.to_thread(exec, f"{code}\nclient.close()", {})
    [answer] = capsys.readouterr().out.split("\n", 1)[:1]
    assert json.loads(answer)["response"]["body"]["choices"][0]["message"]["content"] == SAYS
