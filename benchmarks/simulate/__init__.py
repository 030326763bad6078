"""Policies and routers in virtual time, over generated programs and traces."""
