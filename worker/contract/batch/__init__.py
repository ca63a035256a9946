"""Batches: files of lines in, slices out to workers, rows and files back."""
