"""The cost of a tool call over each transport, compared with the bare library's."""
