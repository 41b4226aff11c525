"""In-memory fakes of the engine's backends."""
