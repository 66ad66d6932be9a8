"""A step's tasks carried out: each lane a thread of its own, watched and timed."""
