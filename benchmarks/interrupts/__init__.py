"""The cost of a tool call over each transport, compared with a call of the bare library."""
