"""Makes ``requests.jsonl`` of what `requests_of` printed for each version: ``merge.py FILE…``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

REQUESTS = Path(__file__).with_name("requests.jsonl")


def merged(lines: list[str]) -> list[dict[str, Any]]:
    """Each request once, with the versions that send it."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        one = json.loads(line)
        by = one.pop("by")
        kept = found.setdefault(json.dumps(one, sort_keys=True), {**one, "by": []})
        if by not in kept["by"]:
            kept["by"].append(by)
    return list(found.values())


if __name__ == "__main__":
    printed = [line for name in sys.argv[1:] for line in Path(name).read_text().splitlines()]
    REQUESTS.write_text("".join(json.dumps(one) + "\n" for one in merged(printed)))
