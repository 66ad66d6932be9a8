"""Build, load and save Hugging Face models shard by shard."""
