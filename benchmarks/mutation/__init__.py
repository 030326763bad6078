"""Mutation testing of the pure packages, which use no engine, no server and no process."""
