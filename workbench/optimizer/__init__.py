"""The host optimizer's Python face, learning-rate schedules and the torch reference."""
