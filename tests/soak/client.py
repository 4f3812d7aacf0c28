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
from logstore.ports.catalog import Topic
from logstore.positions import LedgerId, Position
from tests.soak.jobs import Jobs
from tests.soak.receiving import Seeker, receive
from tests.soak.scene import CONSUMED, DELAYED, LASTING, LISTS, PLAIN, SOURCE, Ops, Said, phase
from workers.assembly.log_store import LogStore
from workers.assembly.log_store_from_settings import open_log_store
from workers.client import Sexton
from workers.client.transaction_client import TransactionClient
from workers.settings import Settings, load_settings

BORNE: Final = (SextonError, RPCError, WorkflowFailureError, TimeoutError)
"""What faults may do to a program: an answer that says so. Anything else is a violation."""

_SESSIONS: Final = 3  # transactions at a time
_JOBS: Final = 4  # the same of these
_TXN_TIMEOUT_S: Final = 20.0
_LOOKED_BACK: Final = 40  # elements of a list that a reader reads again


class Client:
    """All that one process does, each kind of work in a thread of its own."""

    def __init__(self, settings: Settings, number: int, log: LogStore) -> None:
        """Look for what earlier processes of this number have done."""
        self._settings, self._number, self._log = settings, number, log
        self._name = f"client-{number}-{os.getpid()}-{time.time_ns():x}"
        self._ops = Ops(settings.home, self._name)
        self._count = 0
        self._counting = threading.Lock()
        self._topics = {name: log.catalog.topics.get_topic(name) for name in LASTING}
        self._sequence = self._answered_sequence()

    def run(self) -> None:
        """Work until the phase is `end`."""
        work: list[Callable[[], None]] = [
            self._plain,
            self._plain,
            self._numbered,
            self._delayed,
            self._reads,
            *(lambda name=name: self._consumes(name) for name in (PLAIN + DELAYED)[self._number :: 2]),
            *(
                Seeker(self._log, self._topics[name], self._ops, lambda: self._phase).round
                for name in DELAYED[
                    self._number : self._number + 1
                ]  # one process seeks, so that the last seek is known
            ),
        ]
        threads = [threading.Thread(target=self._kept_up, args=(one,)) for one in work]
        for thread in threads:
            thread.start()
        asyncio.run(self._jobs_and_transactions())
        for thread in threads:
            thread.join()

    @property
    def _phase(self) -> str:
        return phase(self._settings.home)

    def _kept_up(self, work: Callable[[], None]) -> None:
        """Do it again and again, whatever faults do to it."""
        while self._phase != "end":
            try:
                work()
            except BORNE:
                time.sleep(0.2)
            except Exception:  # noqa: BLE001 - told to the auditor
                self._ops.say("fault", text=traceback.format_exc()[-1500:], wall=time.time())
                time.sleep(1)

    def _fresh(self) -> str:
        """A payload that nobody has written."""
        with self._counting:
            self._count += 1
            return f"{self._name}.{self._count}"

    def _append(self, name: str, entries: list[NewEntry], **more: Any) -> Position | None:
        payloads = [one.payload.decode() for one in entries]
        said = {"deliver_at_ms": [one.deliver_at_ms for one in entries]} if name in DELAYED else {}
        with self._ops.op("append", topic=name, payloads=payloads, **said, **more) as answer:
            done = self._log.managed.append(
                self._topics[name], ProducedEntries(entries=entries, producer=more.get("producer"))
            )
            answer |= {"first": _pair(done.first), "duplicates": done.duplicates}
            return done.first

    def _is_to_write(self, least_s: float, most_s: float) -> bool:
        """After a rest: whether new work is still wanted."""
        time.sleep(random.uniform(least_s, most_s))
        return self._phase == "work"

    def _plain(self) -> None:
        if not self._is_to_write(0.1, 0.5):
            return
        entries = [NewEntry(payload=self._fresh().encode()) for _ in range(random.randint(1, 8))]
        self._append(random.choice(PLAIN), entries)

    def _numbered(self) -> None:
        """A producer with sequence ids, which repeats what was not answered: every entry is there once."""
        if not self._is_to_write(0.2, 0.6):
            return
        first = self._sequence + 1
        producer = f"producer-{self._number}"
        numbers = range(first, first + 3)
        entries = [NewEntry(payload=f"{producer} {one}".encode(), sequence_id=one) for one in numbers]
        self._append(PLAIN[0], entries, producer=producer, sequences=[*numbers])
        self._sequence = numbers[-1]

    def _answered_sequence(self) -> int:
        said = Said(self._settings.home, f"client-{self._number}-*").entries()
        asked = {one["op"]: one for one in said if one["what"] == "asked" and "sequences" in one}
        done = [asked[one["op"]]["sequences"][-1] for one in said if one["what"] == "done" and one["op"] in asked]
        return max(done, default=0)

    def _delayed(self) -> None:
        if not self._is_to_write(0.1, 0.4):
            return
        now_ms = time.time_ns() // 1_000_000
        times = [
            random.choice((None, now_ms + random.randint(200, 40_000), now_ms + random.randint(200, 8_000)))
            for _ in range(random.randint(1, 6))
        ]
        if random.random() < 0.05:
            times.append(now_ms + 3_600_000)
        self._append(
            random.choice(DELAYED), [NewEntry(payload=self._fresh().encode(), deliver_at_ms=one) for one in times]
        )

    def _consumes(self, name: str) -> None:
        """Receive and acknowledge; what was received and not acknowledged comes again, here or elsewhere."""
        topic = self._topics[name]
        with self._log.delivery.create_consumer(topic, CONSUMED) as consumer:
            for _ in range(random.randint(20, 400)):  # then another consumer
                if self._phase == "end":
                    return
                receive(self._log, consumer, topic, CONSUMED, self._ops)

    def _reads(self) -> None:
        """The ends of all lists, one after the other, as a reader sees them."""
        since: dict[str, list[Position]] = {name: [] for name in LISTS}
        while self._phase != "end":
            time.sleep(1.0)
            for name, known in since.items():
                begins = known[-_LOOKED_BACK] if len(known) >= _LOOKED_BACK else Position(LedgerId(-1), -1)
                began = time.time()
                found = list(
                    self._log.managed.scan(self._topics[name], from_position=begins, columns=("publish_ms", "payload"))
                )
                elements = [[*(_pair(one.position) or ()), (one.payload or b"").decode()] for one in found]
                self._ops.say(
                    "read", topic=name, begins=_pair(begins), began=began, ended=time.time(), elements=elements
                )
                since[name] = [one.position for one in found]

    async def _jobs_and_transactions(self) -> None:
        sexton = await self._connected()
        if sexton is None:
            return
        async with sexton:
            transactions = sexton.transactions(self._log)
            jobs = Jobs(self._settings, sexton, self._log, self._ops)
            await asyncio.gather(
                *(self._kept_on(lambda: self._transaction(transactions)) for _ in range(_SESSIONS)),
                *(self._kept_on(jobs.one) for _ in range(_JOBS)),
            )

    async def _connected(self) -> Sexton | None:
        while self._phase != "end":
            try:
                return await Sexton.connect(self._settings)
            except BORNE:
                await asyncio.sleep(0.5)
        return None

    async def _kept_on(self, work: Callable[[], Any]) -> None:
        while self._phase != "end":
            if self._phase == "drain":
                await asyncio.sleep(0.2)
                continue
            try:
                await work()
            except BORNE:
                await asyncio.sleep(0.2)
            except Exception:  # noqa: BLE001 - told to the auditor
                self._ops.say("fault", text=traceback.format_exc()[-1500:], wall=time.time())
                await asyncio.sleep(1)

    async def _transaction(self, transactions: TransactionClient) -> None:
        """An element for two or three lists and an acknowledgement, all or nothing."""
        await asyncio.sleep(random.uniform(0.1, 0.6))
        element, names = self._fresh(), random.sample(LISTS, random.randint(2, 3))
        entry = [NewEntry(payload=self._fresh().encode())]
        consumed = await asyncio.to_thread(self._append, SOURCE, entry)
        with self._ops.op("begin") as answer:
            txn = await asyncio.wait_for(transactions.begin(_TXN_TIMEOUT_S), 30)
            answer["txn"] = str(txn)
        for name in names:
            with self._ops.op("append", topic=name, payloads=[element], txn=str(txn)) as answer:
                done = await transactions.append(txn, self._topics[name], [NewEntry(payload=element.encode())])
                answer["first"] = _pair(done.first)
        if consumed:
            source: Topic = self._topics[SOURCE]
            with self._ops.op("acknowledge", topic=SOURCE, positions=[_pair(consumed)], txn=str(txn)):
                await transactions.acknowledge(txn, source, CONSUMED, positions=[consumed])
        commit = random.random() < 0.7
        if random.random() < 0.05:
            return  # forgotten: its time will run out
        with self._ops.op("commit" if commit else "abort", txn=str(txn)) as answer:
            end = transactions.commit if commit else transactions.abort
            answer["state"] = str(await asyncio.wait_for(end(txn), 60))


def _pair(position: Position | None) -> tuple[int, int] | None:
    return None if position is None else (position.ledger_id, position.entry_id)


def main() -> None:
    """Be client number `argv[1]`, with the settings of the environment."""
    settings = load_settings({}, os.environ, Path.cwd()).settings
    while True:
        try:
            with open_log_store(settings) as log:
                Client(settings, int(sys.argv[1]), log).run()
        except BORNE:  # it began in the middle of a fault
            if phase(settings.home) == "end":
                return
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    main()
