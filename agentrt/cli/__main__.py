"""``python -m agentrt.cli``, which is the same as ``agentrt``."""

from __future__ import annotations

from agentrt.cli import main

# The engine's process imports this module again under another name, and must not run the command.
if __name__ == "__main__":
    main()
