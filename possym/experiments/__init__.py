"""The studies of the book: one module a study, each with `Config` presets and `run(config)`."""
