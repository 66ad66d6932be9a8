"""What comes out of a run: its model exported, its adapter merged, text sampled from it."""
