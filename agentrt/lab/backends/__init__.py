"""The backends that run the programs of the laboratory: virtual and real engines."""
