"""What the machine is doing: GPU, host and trainer, sampled in threads and handed out as plain values.

It is usable without the screen. Invariant: a value that a driver or the system does not give is None, never an
exception and never a zero.
"""
