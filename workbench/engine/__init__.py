"""The offload engine: executes layout and timeline on real memory."""
