"""vLLM's front ends over HTTP: checks the limits of each request, and finds the request's model and
its program.
"""
