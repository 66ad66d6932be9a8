"""The lanes of a step over time: what each did, and what of it was hidden."""
