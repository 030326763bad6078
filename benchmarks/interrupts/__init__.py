"""The cost of a tool call over each transport, compared with the same call by the
transport's own library.
"""
