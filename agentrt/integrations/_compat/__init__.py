"""Private parts of other packages that the integrations use: one module for each package.

Only these modules name such parts. `tests/integrations/test_compat.py` tests each of them, so that
a new version of a package that changes one fails there.
"""
