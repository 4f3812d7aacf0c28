"""Consume, transform, produce: each entry of one topic makes one entry on each of two other topics, exactly once.

You can run several copies of this program at once and kill them at any time. A transaction that its program did not
decide times out. Its entries are never visible, and the entries that it had acknowledged are delivered again. The
program ends when all entries are acknowledged. It waits for entries with a delivery time.

    sexton up
    sexton topic create persistent://shop/main/paid        # and shipped, and invoices
    sexton topic subscribe persistent://shop/main/paid shipping --from earliest
    sexton topic append persistent://shop/main/paid --file orders.jsonl
    python docs/examples/exactly_once.py
"""

import asyncio
import os
from pathlib import Path

from logstore.errors import PreconditionFailed
from logstore.log.entries import NewEntry
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton
from workers.settings import load_settings

SUBSCRIPTION = "shipping"


async def ship_and_invoice_paid_entries() -> None:
    settings = load_settings({}, os.environ, Path.cwd()).settings
    with open_log_store(settings) as log:
        paid, *targets = (
            log.catalog.topics.get_topic(f"persistent://shop/main/{name}") for name in ("paid", "shipped", "invoices")
        )
        async with await Sexton.connect(settings) as sexton:
            transactions = sexton.transactions(log)
            watch = log.topic_logs.watch(paid)
            while True:
                state = log.subscriptions.read_state(paid.topic_id, SUBSCRIPTION)
                entries = log.topic_logs.read(paid, max_entries=2, cursor_state=state)
                if not entries:
                    if not log.catalog.ledgers.count_backlogs(paid.topic_id, [state])[0]:
                        held = log.catalog.transactions.find_held_entries(paid.topic_id, SUBSCRIPTION)
                        if not held:
                            return
                    # The rest is in a transaction of another program, which may be dead. The end of that transaction
                    # wakes this program.
                    await asyncio.to_thread(watch.wait, timeout_s=10)
                    continue
                txn = await transactions.begin(timeout_s=5)
                try:
                    positions = [entry.position for entry in entries]
                    await transactions.acknowledge(txn, paid, SUBSCRIPTION, positions=positions)
                    for topic in targets:
                        made = [NewEntry(payload=(entry.payload or b"").upper()) for entry in entries]
                        await transactions.append(txn, topic, made)
                    await transactions.commit(txn)
                except PreconditionFailed as refused:
                    # Another program was first, or this one was too slow. Nothing happened.
                    print(f"again: {refused}", flush=True)
                    await transactions.abort(txn)
                else:
                    print(f"{txn}: {len(entries)} entries", flush=True)


asyncio.run(ship_and_invoice_paid_entries())
