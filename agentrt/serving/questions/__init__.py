"""Questions of programs and graphs to humans: a common list, and the HTTP routes to answer them."""
