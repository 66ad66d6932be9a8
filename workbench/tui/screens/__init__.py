"""One file a screen. A screen knows its surroundings and asks for other screens by messages."""
