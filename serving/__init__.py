"""The server for programs and their clients. Not built yet."""
