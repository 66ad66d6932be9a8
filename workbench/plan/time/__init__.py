"""How long a step takes, and a run: the engine's timeline played through at a machine's rates."""
