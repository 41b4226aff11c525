"""Compositions: the engine and the queries with their backends."""
