"""Simulations of policies and routers, on generated programs and traces."""
