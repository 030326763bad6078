"""What a person sees of the server: dashboard, metrics, lists."""
