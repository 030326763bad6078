"""What a tool's call costs over each transport, beside the bare library's."""
