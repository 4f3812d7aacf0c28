"""What builds of snapshots find."""

from typing import Final

from pyroaring import BitMap

from logstore.positions import LedgerId, Position
from logstore.transactions.buffer import Buffer
from tests.workflows.house import House

BUFFER: Final = Buffer(read_to=Position(LedgerId(1), 9), hidden={LedgerId(1): BitMap([3, 4])})


def buffer_of_topic(house: House) -> None:
    """What the bulk job finds."""
    house.world.bulk.buffers = {house.world.topic.topic_id: BUFFER}
