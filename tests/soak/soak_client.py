"""A client of the soak: appends, consumes, works in transactions, reads, and writes down every question and answer.

It is killed and paused as workers are; the next process of its number goes on where its journals end.
"""

import asyncio
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from logstore.errors import SextonError
from logstore.log.entries import NewEntry, ProducedEntries
from logstore.ports.catalog.log import Topic
from logstore.positions import LedgerId, Position
from tests.soak.client_jobs import ClientJobs
from tests.soak.soak_consumers import SeekingConsumer, receive_and_acknowledge
from tests.soak.soak_setup import (
    CONSUMING_SUBSCRIPTION,
    DELAYED_TOPICS,
    LASTING_TOPICS,
    LIST_TOPICS,
    PLAIN_TOPICS,
    SOURCE_TOPIC,
    JournalsReader,
    OperationJournal,
    read_phase,
)
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton
from workers.client.transaction_client import TransactionClient
from workers.settings import Settings, load_settings

EXPECTED_ERRORS: Final = (SextonError, RPCError, WorkflowFailureError, TimeoutError)
"""What faults may do to a program: an answer that says so. Anything else is a violation."""

_TRANSACTION_SESSIONS: Final = 3  # transactions at a time
_JOB_SESSIONS: Final = 4  # the same of these
_TXN_TIMEOUT_S: Final = 20.0
_ELEMENTS_READ_AGAIN: Final = 40  # elements of a list that a reader reads again


class Client:
    """All that one process does, each kind of work in a thread of its own."""

    def __init__(self, settings: Settings, number: int, log: LogStore) -> None:
        """Look for what earlier processes of this number have done."""
        self._settings, self._number, self._log = settings, number, log
        self._name = f"client-{number}-{os.getpid()}-{time.time_ns():x}"
        self._journal = OperationJournal(settings.home, self._name)
        self._count = 0
        self._counting = threading.Lock()
        self._topics = {name: log.catalog.topics.get_topic(name) for name in LASTING_TOPICS}
        self._sequence = self._last_answered_sequence()

    def run(self) -> None:
        """Work until the phase is `end`."""
        work: list[Callable[[], None]] = [
            self._append_plain,
            self._append_plain,
            self._append_numbered,
            self._append_delayed,
            self._read_lists,
            *(
                lambda name=name: self._consume_topic(name)
                for name in (PLAIN_TOPICS + DELAYED_TOPICS)[self._number :: 2]
            ),
            *(
                SeekingConsumer(self._log, self._topics[name], self._journal, lambda: self._phase).round
                for name in DELAYED_TOPICS[
                    self._number : self._number + 1
                ]  # one process seeks, so that the last seek is known
            ),
        ]
        threads = [threading.Thread(target=self._repeat_until_end, args=(thread_work,)) for thread_work in work]
        for thread in threads:
            thread.start()
        asyncio.run(self._jobs_and_transactions())
        for thread in threads:
            thread.join()

    @property
    def _phase(self) -> str:
        return read_phase(self._settings.home)

    def _repeat_until_end(self, work: Callable[[], None]) -> None:
        """Do it again and again, whatever faults do to it."""
        while self._phase != "end":
            try:
                work()
            except EXPECTED_ERRORS:
                time.sleep(0.2)
            except Exception:  # noqa: BLE001 - told to the auditor
                self._journal.say("fault", text=traceback.format_exc()[-1500:], wall=time.time())
                time.sleep(1)

    def _next_payload(self) -> str:
        """A payload that nobody has written."""
        with self._counting:
            self._count += 1
            return f"{self._name}.{self._count}"

    def _append(self, name: str, entries: list[NewEntry], **options: Any) -> Position | None:
        payloads = [entry.payload.decode() for entry in entries]
        delivery_times = {"deliver_at_ms": [entry.deliver_at_ms for entry in entries]} if name in DELAYED_TOPICS else {}
        with self._journal.record_operation(
            "append", topic=name, payloads=payloads, **delivery_times, **options
        ) as answer:
            appended = self._log.topic_logs.append(
                self._topics[name], ProducedEntries(entries=entries, producer=options.get("producer"))
            )
            answer |= {"first": _position_pair(appended.first), "duplicates": appended.duplicates}
            return appended.first

    def _rest_and_may_write(self, least_s: float, most_s: float) -> bool:
        """After a rest: whether new work is still wanted."""
        time.sleep(random.uniform(least_s, most_s))
        return self._phase == "work"

    def _append_plain(self) -> None:
        if not self._rest_and_may_write(0.1, 0.5):
            return
        entries = [NewEntry(payload=self._next_payload().encode()) for _ in range(random.randint(1, 8))]
        self._append(random.choice(PLAIN_TOPICS), entries)

    def _append_numbered(self) -> None:
        """A producer with sequence ids, which repeats what was not answered: every entry is there once."""
        if not self._rest_and_may_write(0.2, 0.6):
            return
        first_sequence = self._sequence + 1
        producer = f"producer-{self._number}"
        numbers = range(first_sequence, first_sequence + 3)
        entries = [NewEntry(payload=f"{producer} {number}".encode(), sequence_id=number) for number in numbers]
        self._append(PLAIN_TOPICS[0], entries, producer=producer, sequences=[*numbers])
        self._sequence = numbers[-1]

    def _last_answered_sequence(self) -> int:
        journal_entries = JournalsReader(self._settings.home, f"client-{self._number}-*").entries()
        request_by_operation = {
            entry["op"]: entry for entry in journal_entries if entry["what"] == "asked" and "sequences" in entry
        }
        answered_sequences = [
            request_by_operation[entry["op"]]["sequences"][-1]
            for entry in journal_entries
            if entry["what"] == "done" and entry["op"] in request_by_operation
        ]
        return max(answered_sequences, default=0)

    def _append_delayed(self) -> None:
        if not self._rest_and_may_write(0.1, 0.4):
            return
        now_ms = time.time_ns() // 1_000_000
        times = [
            random.choice((None, now_ms + random.randint(200, 40_000), now_ms + random.randint(200, 8_000)))
            for _ in range(random.randint(1, 6))
        ]
        if random.random() < 0.05:
            times.append(now_ms + 3_600_000)
        self._append(
            random.choice(DELAYED_TOPICS),
            [NewEntry(payload=self._next_payload().encode(), deliver_at_ms=deliver_at_ms) for deliver_at_ms in times],
        )

    def _consume_topic(self, name: str) -> None:
        """Receive and acknowledge; what was received and not acknowledged comes again, here or elsewhere."""
        topic = self._topics[name]
        with self._log.delivery.create_consumer(topic, CONSUMING_SUBSCRIPTION) as consumer:
            for _ in range(random.randint(20, 400)):  # then another consumer
                if self._phase == "end":
                    return
                receive_and_acknowledge(self._log, consumer, topic, CONSUMING_SUBSCRIPTION, self._journal)

    def _read_lists(self) -> None:
        """The ends of all lists, one after the other, as a reader sees them."""
        positions_by_list: dict[str, list[Position]] = {name: [] for name in LIST_TOPICS}
        while self._phase != "end":
            time.sleep(1.0)
            for name, known_positions in positions_by_list.items():
                begins = (
                    known_positions[-_ELEMENTS_READ_AGAIN]
                    if len(known_positions) >= _ELEMENTS_READ_AGAIN
                    else Position(LedgerId(-1), -1)
                )
                began = time.time()
                entries = list(
                    self._log.topic_logs.scan(
                        self._topics[name], from_position=begins, columns=("publish_ms", "payload")
                    )
                )
                elements = [
                    [*(_position_pair(entry.position) or ()), (entry.payload or b"").decode()] for entry in entries
                ]
                self._journal.say(
                    "read", topic=name, begins=_position_pair(begins), began=began, ended=time.time(), elements=elements
                )
                positions_by_list[name] = [entry.position for entry in entries]

    async def _jobs_and_transactions(self) -> None:
        sexton = await self._connect_until_end()
        if sexton is None:
            return
        async with sexton:
            transactions = sexton.transactions(self._log)
            jobs = ClientJobs(self._settings, sexton, self._log, self._journal)
            await asyncio.gather(
                *(
                    self._repeat_async_until_end(lambda: self._run_transaction(transactions))
                    for _ in range(_TRANSACTION_SESSIONS)
                ),
                *(self._repeat_async_until_end(jobs.run_least_begun_job) for _ in range(_JOB_SESSIONS)),
            )

    async def _connect_until_end(self) -> Sexton | None:
        while self._phase != "end":
            try:
                return await Sexton.connect(self._settings)
            except EXPECTED_ERRORS:
                await asyncio.sleep(0.5)
        return None

    async def _repeat_async_until_end(self, work: Callable[[], Any]) -> None:
        while self._phase != "end":
            if self._phase == "drain":
                await asyncio.sleep(0.2)
                continue
            try:
                await work()
            except EXPECTED_ERRORS:
                await asyncio.sleep(0.2)
            except Exception:  # noqa: BLE001 - told to the auditor
                self._journal.say("fault", text=traceback.format_exc()[-1500:], wall=time.time())
                await asyncio.sleep(1)

    async def _run_transaction(self, transactions: TransactionClient) -> None:
        """An element for two or three lists and an acknowledgement, all or nothing."""
        await asyncio.sleep(random.uniform(0.1, 0.6))
        element, names = self._next_payload(), random.sample(LIST_TOPICS, random.randint(2, 3))
        entry = [NewEntry(payload=self._next_payload().encode())]
        consumed = await asyncio.to_thread(self._append, SOURCE_TOPIC, entry)
        with self._journal.record_operation("begin") as answer:
            txn = await asyncio.wait_for(transactions.begin(_TXN_TIMEOUT_S), 30)
            answer["txn"] = str(txn)
        for name in names:
            with self._journal.record_operation("append", topic=name, payloads=[element], txn=str(txn)) as answer:
                appended = await transactions.append(txn, self._topics[name], [NewEntry(payload=element.encode())])
                answer["first"] = _position_pair(appended.first)
        if consumed:
            source: Topic = self._topics[SOURCE_TOPIC]
            with self._journal.record_operation(
                "acknowledge", topic=SOURCE_TOPIC, positions=[_position_pair(consumed)], txn=str(txn)
            ):
                await transactions.acknowledge(txn, source, CONSUMING_SUBSCRIPTION, positions=[consumed])
        commit = random.random() < 0.7
        if random.random() < 0.05:
            return  # forgotten: its time will run out
        with self._journal.record_operation("commit" if commit else "abort", txn=str(txn)) as answer:
            end = transactions.commit if commit else transactions.abort
            answer["state"] = str(await asyncio.wait_for(end(txn), 60))


def _position_pair(position: Position | None) -> tuple[int, int] | None:
    return None if position is None else (position.ledger_id, position.entry_id)


def main() -> None:
    """Be client number `argv[1]`, with the settings of the environment."""
    settings = load_settings({}, os.environ, Path.cwd()).settings
    while True:
        try:
            with open_log_store(settings) as log:
                Client(settings, int(sys.argv[1]), log).run()
        except EXPECTED_ERRORS:  # it began in the middle of a fault
            if read_phase(settings.home) == "end":
                return
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    main()
