"""The rows of tokens that a run asks for, and how their documents are kept apart."""
