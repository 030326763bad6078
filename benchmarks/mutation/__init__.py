"""Mutation testing of the pure rooms."""
