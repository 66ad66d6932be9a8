"""Everything before the first step: the model, the text, whether it fits, and what is said meanwhile."""
