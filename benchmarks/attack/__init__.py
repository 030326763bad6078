"""What one tenant can do to another's calls."""
