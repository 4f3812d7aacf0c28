"""Error for metadata of a cluster that Sexton cannot interpret."""

from logstore.errors import TerminalError


class UnreadableMetadata(TerminalError):
    """The value or the place of a znode, or an entry, has an unknown format, layout or version, or is damaged.

    A plan that met this error is incomplete.
    """
