"""Figures beside their floor."""
