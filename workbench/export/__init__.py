"""Export a run's model, merge its adapter, sample text from it."""
