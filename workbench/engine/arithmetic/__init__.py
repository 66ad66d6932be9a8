"""What numbers are kept and computed in, and who computes with them in each tier."""
