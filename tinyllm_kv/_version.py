"""The version, in a file of its own so that a build can read it without the extension."""

__version__ = "0.1.0"
