"""What the integrations read inside other packages: one module for each, which alone names it.

`tests/integrations/test_compat.py` has a test for each name, and says what has changed.
"""
