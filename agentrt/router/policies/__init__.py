"""The routers, one in each file, with its rule at the top."""
