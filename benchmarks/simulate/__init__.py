"""Simulations of policies and routers in virtual time, on generated programs and traces."""
