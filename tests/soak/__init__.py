"""Faults tried by the thousand: `python -m tests.soak`, or `make soak`."""
