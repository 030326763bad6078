"""Code of the engine core's process: agentrt's scheduler, and what translates for it.

The room above holds the code of the user's process: the engine, its options, and its calls.
"""
