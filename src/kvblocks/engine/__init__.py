"""The embedded engine: a real model on the CPU that reads and writes its cache through block tables."""
