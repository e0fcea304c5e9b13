"""Benchmarks that are commands: ``mkviz bench NAME``."""
