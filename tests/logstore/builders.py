"""Values that tests of the rules start from."""

from dataclasses import replace
from typing import Any

from logstore.deletion.intents import DeletionIntent
from logstore.log.ledgers import Component, CopyKind, LedgerOwner, LedgerStatement
from logstore.positions import LedgerId, TopicId

CREATED_US = 5
TOPIC = "persistent://tenant/namespace/orders"

OWNER = LedgerOwner(application="sexton", component=Component.MANAGED_LEDGER, topic_id=TopicId(1), topic=TOPIC, keys={})


def statement(ledger_id: int, owner: LedgerOwner = OWNER) -> LedgerStatement:
    """Storage's own statement of a ledger."""
    return LedgerStatement(owner=owner, ledger_id=LedgerId(ledger_id), created_us=CREATED_US, epoch=1)


def intent(ledger_id: int = 7, **changes: Any) -> DeletionIntent:
    """An intent for the primary copy of a data ledger of `OWNER`."""
    base = DeletionIntent(
        row_id=1,
        batch_id="b",
        ledger_id=LedgerId(ledger_id),
        copy=CopyKind.LEDGER,
        generation=0,
        application=OWNER.application,
        component=OWNER.component.value,
        topic_id=OWNER.topic_id,
        topic=OWNER.topic,
        keys={},
    )
    segments = int(changes.get("segments", 0))
    return replace(base, **{"last_segment": segments - 1, "ledger_created_us": CREATED_US} | changes)
