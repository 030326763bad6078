"""Mutation testing: what the tests of the pure rooms let pass."""
