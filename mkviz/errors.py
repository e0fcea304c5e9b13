"""The one exception type that users are meant to see."""


class MkvizError(Exception):
    """A mistake in the input or the surroundings, told in one line.

    ``what`` names the thing and its value, ``remedy`` says what would be right.  The command line prints
    ``error: what; remedy`` and exits with ``exit_code`` (2: bad input); a page shows the same line inline.
    Anything that is not a ``MkvizError`` is a bug of ours and keeps its traceback behind ``--debug``.
    """

    exit_code = 2

    def __init__(self, what: str, remedy: str = ""):
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}; {remedy}" if remedy else what)
