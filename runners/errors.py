"""Errors that are the user's to mend: one clear line, no traceback."""


class UserError(Exception):
    """Bad input or an unmet need. The message names the value, what was expected and the remedy."""


class ServerError(Exception):
    """The engine failed: it did not start, is not what was asked for, died, or does not answer."""
