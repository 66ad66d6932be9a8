"""The form of a configuration, whether what it says fits, and the widgets that show both."""
