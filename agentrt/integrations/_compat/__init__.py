"""Private parts of other packages that the integrations use: one module for each package.

Only these modules name such parts. `tests/integrations/test_compat.py` tests each of these parts,
and fails if a new version of a package changes a part.
"""
