"""Error for metadata of a cluster that Sexton cannot interpret."""

from logstore.errors import TerminalError, shorten_text


class UnreadableMetadata(TerminalError):
    """The value or the place of a znode, or an entry, has an unknown format, layout or version, or is damaged.

    A scan reports it as a problem, or ends if nothing can be scanned. The message shows at most 120 characters of
    `found`: a text as it is, so that it can be a phrase such as "no such znode".
    """

    def __init__(self, subject: str, *, expected: str, found: object) -> None:
        shown = found if isinstance(found, str) else repr(found)
        super().__init__(f"{subject}: expected {expected}, found {shorten_text(shown)}")
        self.subject = subject
        self.expected = expected
        self.found = found
