"""Mutation testing of the pure rooms: the packages without an engine, a server or a process."""
