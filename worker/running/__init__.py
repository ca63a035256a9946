"""Runs turns, slices and steps: claim, engine, commit."""
