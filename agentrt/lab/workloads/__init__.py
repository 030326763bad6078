"""Programs to study: their shapes, generators after the literature, traces, arrivals."""
