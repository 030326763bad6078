"""The laboratory: what measures and simulates the product. Nothing of the product imports it."""
