"""``python -m agentrt.cli`` is ``agentrt``."""

from __future__ import annotations

from agentrt.cli import main

# An engine's process imports this module again, under another name.
if __name__ == "__main__":
    main()
