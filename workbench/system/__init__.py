"""What several rooms ask of the operating system: files, processor, child processes."""
