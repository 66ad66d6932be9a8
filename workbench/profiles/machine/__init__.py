"""Measures the machine: what a plan's times are made of, taken in under a minute and kept until the machine changes."""
