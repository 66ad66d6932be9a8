"""DeepSpeed's JSON: a reader for each of its sections, and tables of the keys without a field."""
