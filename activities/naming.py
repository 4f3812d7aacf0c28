"""A topic's id and its name, told together: a mistake in one of them means another topic."""

from logstore.errors import InvalidInput, UnknownObject
from logstore.names import TopicName
from logstore.ports.catalog import Topics
from logstore.positions import TopicId


def is_topic_name(name: str) -> bool:
    """Whether an encoded name can be a topic's; one that is empty or damaged names none."""
    try:
        TopicName.from_encoded(name)
    except InvalidInput:
        return False
    return True


def check_topic_name(topics: Topics, topic_id: int, name: str) -> None:
    """Refuse an encoded name that the topic of that id does not bear; ids and names stay together for ever.

    What is no name is any name: requests of earlier builds have none. Of a topic that is gone nothing is said here.

    Raises:
        InvalidInput: It bears another.
    """
    if not is_topic_name(name):
        return  # none, or damaged in the catalog: nobody meant another topic
    try:
        found = topics.by_id(TopicId(topic_id))
    except UnknownObject:
        return  # the work itself finds out, and may have been done when the topic was there
    if found.name != name:
        raise InvalidInput("topic", expected=f"the name of topic {topic_id}, {found.name}", found=name)
