"""Where programs of the laboratory run: engines in virtual time, and real ones."""
