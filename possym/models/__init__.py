"""Ensembles of small models, and readers for real ones."""
