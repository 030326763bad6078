"""Served ``@program`` functions that clients start, and client programs, which run elsewhere and
send only their calls to this server.
"""
