"""`workbench verify`: a run's own configuration against plain torch, row by row."""
