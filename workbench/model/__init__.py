"""Build, load and save Hugging Face models unit by unit."""
