"""Tools of those who work on skebm; nothing here is installed."""
