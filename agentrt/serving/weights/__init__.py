"""The weights of the served model over HTTP: update them, and pause and resume generation."""
