"""The studies of the book: one module per study, each with `Config` presets and `run(config)`."""
