"""The parts of the run's screen: reading a run as it grows, its charts, machine, samples, events and summary."""
