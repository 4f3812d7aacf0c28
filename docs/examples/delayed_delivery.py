"""Reminders: messages that a program receives at their delivery time, and not before.

You can run this program several times and kill it at any time: messages that were not acknowledged are delivered again.
The program ends when no message is left.

    sexton up
    sexton topic create persistent://home/main/reminders
    sexton topic subscribe persistent://home/main/reminders bell --from earliest
    python docs/examples/delayed_delivery.py 20 5 60        # seconds from now
    sexton delayed status persistent://home/main/reminders  # meanwhile, in another terminal
"""

import os
import sys
import time
from pathlib import Path

from logstore.log.entries import NewEntry, ProducedEntries
from workers.assembly.log_store_from_settings import open_log_store
from workers.settings import load_settings

SUBSCRIPTION = "bell"


def send_and_await_reminders(delays_s: list[float]) -> None:
    settings = load_settings({}, os.environ, Path.cwd()).settings
    with open_log_store(settings) as log:
        topic = log.catalog.topics.get_topic("persistent://home/main/reminders")
        now_ms = time.time_ns() // 1_000_000
        reminders = [
            NewEntry(payload=f"{delay:g} s have passed".encode(), deliver_at_ms=now_ms + round(delay * 1_000))
            for delay in delays_s
        ]
        if reminders:
            log.topic_logs.append(topic, ProducedEntries(entries=reminders))
        with log.delivery.create_consumer(topic, SUBSCRIPTION) as consumer:
            while True:
                entries = consumer.receive(max_entries=100)
                if not entries:
                    state = log.subscriptions.get(topic.topic_id, SUBSCRIPTION).state
                    if not log.catalog.ledgers.count_backlogs(topic.topic_id, [state])[0]:
                        return
                    consumer.wait(timeout_s=10)  # until a message is due or arrives
                    continue
                for entry in entries:
                    late_ms = time.time_ns() // 1_000_000 - (entry.deliver_at_ms or 0)
                    print(f"{entry.position}: {(entry.payload or b'').decode()}, {late_ms} ms ago", flush=True)
                positions = [entry.position for entry in entries]
                log.subscriptions.acknowledge(topic.topic_id, SUBSCRIPTION, positions=positions)


send_and_await_reminders([float(delay) for delay in sys.argv[1:]])
