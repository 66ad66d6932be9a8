"""Simulates layout and timeline on a machine: memory, time, fit. Knows nothing of torch."""
