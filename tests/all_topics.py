"""Every topic of a catalog, for tests alone: the product goes by pages."""

from logstore.catalog.log.topics import Topics
from logstore.ports.catalog.log import Topic


def list_all_topics(topics: Topics) -> list[Topic]:
    """All of them, ascending by name."""
    return [summary.topic for summary in topics.list_topic_summaries(limit=10_000).topics]
