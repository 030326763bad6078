"""Models and programs behind the OpenAI API."""
