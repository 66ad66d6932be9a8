"""Text to token files, and sampling from them with an exact cursor."""
