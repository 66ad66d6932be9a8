"""Sample the machine in threads (GPUs, host, trainer, disks), and hand the values out as plain data.

It is usable without the screen. Invariant: a value that a driver or the system does not give is None, never an
exception and never a zero.
"""
