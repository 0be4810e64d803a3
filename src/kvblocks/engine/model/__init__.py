"""The model: its shape, its layers, attention over block tables."""
