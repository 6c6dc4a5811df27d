"""Applications that show how the framework is used."""
