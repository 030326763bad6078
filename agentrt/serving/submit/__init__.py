"""Submitted programs: clients send them as source, and they run in a sandbox."""
