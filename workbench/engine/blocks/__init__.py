"""What happens around a block: found, its weights in and out, its recompute, its input kept on the host."""
