"""The operating system, as several rooms ask it: files, processor, child processes."""
