"""One file a screen. A screen knows its context and asks for other screens by messages."""
