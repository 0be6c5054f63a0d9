"""The errors possym raises: each says what was given, what was expected and what to do."""


class PossymError(Exception):
    """Any error that possym raises on purpose."""


class InputError(PossymError, ValueError):
    """An argument has the wrong type, shape or value."""


class ConfigError(PossymError, ValueError):
    """A configuration names something unknown or gives it an impossible value."""


class ResultsError(PossymError):
    """A stored result is missing, altered, or was made with another configuration."""


class UnsupportedModelError(PossymError):
    """A model has no rotary attention that possym can read."""
