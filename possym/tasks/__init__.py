"""Synthetic tasks: each draws a balanced `Batch`, knows the path to its answers and solves itself."""
