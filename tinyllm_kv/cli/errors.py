"""The error that commands raise for their user."""


class CommandError(Exception):
    """What the user has to mend, in one line."""
