"""The effects of one tenant's requests on another tenant's calls."""
