"""The exceptions that stand for a mistake of the user's, not of the program's."""


class UserError(Exception):
    """Bad input: a file, a line, a config key.

    The message is one line that names what is wrong, where, and what to do. The
    command line prints it as `error: ...` and exits with status 2, without a
    traceback; library callers can catch it.
    """


class CannotSave(UserError):
    """A checkpoint could not be written: a full disk, a quota, a folder gone.

    Threads of the writer may still be at the rest of it, and may never end: a program
    that has nothing else to do should not wait for them.
    """
