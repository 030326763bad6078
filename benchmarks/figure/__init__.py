"""The paper's toy figures, and how far policies are from one that knows the future."""
