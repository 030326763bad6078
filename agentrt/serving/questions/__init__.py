"""Questions to humans: one list of what programs and graphs ask, and the routes to answer."""
