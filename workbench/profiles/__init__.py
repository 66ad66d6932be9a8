"""The inputs of a plan: the model profile (one real block measured) and the machine profile (probe, data sheets)."""
