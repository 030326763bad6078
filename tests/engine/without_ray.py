"""Imported first by a server of forks: there, nothing that it imports next imports Ray.

Ray reads its settings as it is imported, and a worker of Ray has its own. `tests.engine.forked`,
which is imported last, lets forks import it.
"""

from __future__ import annotations

import sys

sys.modules["ray"] = None  # type: ignore[assignment]  # as Python marks what cannot be imported
