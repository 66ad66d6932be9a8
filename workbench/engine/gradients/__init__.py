"""Gradients as they become final in backward, gathered for the update."""
