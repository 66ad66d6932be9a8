"""The seam between the engine and a device: its memory, host memory that it reaches, and copies between them."""
