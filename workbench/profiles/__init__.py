"""What a plan is made of: the model profile (one real block measured) and the machine profile (probe, data sheets)."""
