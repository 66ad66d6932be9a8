"""Takes the model profile of a model: counts its parameters and runs one real block of each kind. Gives plain data."""
