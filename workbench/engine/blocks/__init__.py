"""Blocks: found in a module, their weights streamed, recomputed in backward, their inputs kept on the host."""
