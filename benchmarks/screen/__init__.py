"""How fast the screen is, measured without a terminal."""
