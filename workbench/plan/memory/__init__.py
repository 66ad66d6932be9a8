"""What each tier needs, byte by byte and by name, and what it has free."""
