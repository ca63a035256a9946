"""Runs what was in crashes in processes of its own."""
