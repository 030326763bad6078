"""Models behind the OpenAI API."""
