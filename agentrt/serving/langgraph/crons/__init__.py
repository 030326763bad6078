"""Crons: runs that start by the clock."""
