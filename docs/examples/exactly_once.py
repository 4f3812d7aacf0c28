"""Consume, transform, produce: each entry of one topic makes one entry on each of two others, exactly once.

Run it as often and as many times at once as you like, and kill it whenever you like: a transaction that its program did not
decide times out, its entries are never seen, and what it had acknowledged is delivered again. It ends when all is
acknowledged: an entry with a delivery time keeps it waiting until then.

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
from workers.assembly.adapters import open_log
from workers.client import Sexton
from workers.settings import load_settings

SUBSCRIPTION = "shipping"


async def main() -> None:
    settings = load_settings({}, os.environ, Path.cwd()).settings
    with open_log(settings) as log:
        paid, *targets = (
            log.catalog.topics.get(f"persistent://shop/main/{name}") for name in ("paid", "shipped", "invoices")
        )
        async with await Sexton.connect(settings) as sexton:
            transactions = sexton.transactions(log)
            watch = log.managed.watch(paid)
            while True:
                state = log.subscriptions.read_state(paid.topic_id, SUBSCRIPTION)
                entries = log.managed.read(paid, max_entries=2, cursor_state=state)
                if not entries:
                    if not log.catalog.ledgers.backlogs(paid.topic_id, [state])[0]:
                        held = log.catalog.transactions.held_entries(paid.topic_id, SUBSCRIPTION)
                        if not held:
                            return
                    # another program has the rest in a transaction, or had before it died: its end wakes us
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
                except (
                    PreconditionFailed
                ) as refused:  # another program was first, or we were too slow: nothing happened
                    print(f"again: {refused}", flush=True)
                    await transactions.abort(txn)
                else:
                    print(f"{txn}: {len(entries)} entries", flush=True)


asyncio.run(main())
