"""Where programs of the laboratory run: simulated steps, virtual engines, real ones."""
