"""A file that can't be read to its end."""

NOT_READABLE = "not_readable"
TRUNCATED, CORRUPT = "truncated_archive", "corrupt_archive"


class BrokenFileError(Exception):
    """A file breaks off; what came before was read."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset
        """Where it broke, in the unpacked content."""
