"""Private parts of other packages that the integrations use: a module for each package, or for
packages that belong together.

Only these modules name such parts. `tests/integrations/test_compat.py` tests each of these parts,
and fails if a new version of a package changes a part.
"""
