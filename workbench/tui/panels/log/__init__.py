"""A run's log, however large its file: read in pieces, followed, searched and filtered."""
