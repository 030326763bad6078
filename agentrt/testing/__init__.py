"""What users need to test their own programs without an engine."""
