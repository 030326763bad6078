"""A server for tests that speaks the protocol by itself, so that it can speak it badly.

``raw_server.py NAME HOW [FOLDER]``: HOW is JSON, with what it does apart from answering:

* ``stray``: bytes, in Latin-1, that it writes before the answer to each call;
* ``answer``: what it writes in place of that answer, with {id} in it;
* ``long``: the number of letters that it writes for {x} in these two;
* ``names``: the names of the tools that it lists, and ``cursor``: that of the page after each;
* ``hangs``: the method that it never answers, for as long as FOLDER has no file ``well``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    name, how = sys.argv[1], json.loads(sys.argv[2])
    well = Path(sys.argv[3], "well") if len(sys.argv) > 3 else None
    out = sys.stdout.buffer
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if number is None:
            continue
        if how.get("hangs") == method and not (well is not None and well.exists()):
            continue
        if method == "initialize":
            info = {"name": name, "version": "1"}
            version = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}}
            result: dict[str, Any] = version | {"serverInfo": info}
        elif method == "tools/list":
            names = how.get("names", [f"{name}_tool"])
            result = {
                "tools": [{"name": each, "inputSchema": {"type": "object"}} for each in names]
            }
            if "cursor" in how:
                result["nextCursor"] = how["cursor"]
        elif method == "tools/call":
            long = "x" * how.get("long", 0)
            out.write(how.get("stray", "").replace("{x}", long).encode("latin-1"))
            if "answer" in how:
                answer = how["answer"].replace("{id}", str(number)).replace("{x}", long)
                out.write(answer.encode() + b"\n")
                out.flush()
                continue
            result = {"content": [{"type": "text", "text": f"of {name}"}]}
        else:
            error = {"code": -32601, "message": "unknown method"}
            out.write(json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode() + b"\n")
            out.flush()
            continue
        out.write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")
        out.flush()


main()
