"""What a run writes down while it goes, and the figures in it."""
