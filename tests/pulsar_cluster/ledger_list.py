"""Ledgers of the cluster as ZooKeeper and BookKeeper's own tools list them, without any code of Sexton's scan."""

import base64
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.pulsar_cluster.cluster import RealCluster

_BOOKIES: Final = "/ledgers/available"
_BUCKET: Final = re.compile(rb"delayed\.bucket_\d+_\d+\x12.(\d+)")
_LISTED_LEDGER: Final = re.compile(r"ledgerID: (\d+)$(?:\n.*LedgerMetadata\{(.*)\})?", re.MULTILINE)
_CUSTOM: Final = re.compile(r"([\w/-]+)=base64:([\w+/=]*)")
_SHELL_TIMEOUT_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class ListedLedger:
    """Ledger in the output of `bookkeeper shell listledgers`."""

    ledger_id: int
    state: str
    custom: Mapping[str, bytes]

    @property
    def application(self) -> str:
        return self.custom.get("application", b"").decode()

    @property
    def component(self) -> str:
        return self.custom.get("component", b"").decode()


class LedgerList:
    """Reads, and plants, znodes of ledgers with a plain client of ZooKeeper."""

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self._client = KazooClient(hosts=cluster.zookeeper, timeout=30.0)
        self._client.start(timeout=60)

    def close(self) -> None:
        self._client.stop()
        self._client.close()

    def list_ids(self) -> set[int]:
        """Return the ids below 2³¹ - 1, of which their znodes have ten digits."""
        return {
            int(f"{first}{second}{last.removeprefix('L')}")
            for first in self._client.get_children("/ledgers")
            if first.isdigit()
            for second in self._client.get_children(f"/ledgers/{first}")
            for last in self._client.get_children(f"/ledgers/{first}/{second}")
        }

    def read_versions(self, ledger_ids: Iterable[int]) -> dict[int, int]:
        """Return the version of the znode of each ledger that exists."""
        stats = {each: self._client.exists(ledger_path(each)) for each in ledger_ids}
        return {ledger_id: stat.version for ledger_id, stat in stats.items() if stat}

    def list_buckets(self, topic: str, subscription: str) -> set[int]:
        """Return the ledgers of the delayed-index buckets that a cursor names."""
        with suppress(NoNodeError):
            data, _ = self._client.get(f"/managed-ledgers/public/default/persistent/{topic}/{subscription}")
            return {int(found) for found in _BUCKET.findall(data)}
        return set()

    def plant_copy(self, source_id: int, ledger_id: int, *, application: str = "pulsar") -> None:
        """Create a ledger with the metadata of another one. No bookie has entries of it."""
        data, _ = self._client.get(ledger_path(source_id))
        expected = b"application\x12\x06pulsar"
        self._client.create(
            ledger_path(ledger_id),
            data.replace(expected, expected.replace(b"pulsar", application.encode())),
            makepath=True,
        )

    def plant_copies(self, source_id: int, ledger_ids: Iterable[int]) -> None:
        """Create many ledgers as `plant_copy` does."""
        data, _ = self._client.get(ledger_path(source_id))
        paths = [ledger_path(each) for each in ledger_ids]
        for parent in {path.rpartition("/")[0] for path in paths}:
            self._client.ensure_path(parent)
        for result in [self._client.create_async(path, data) for path in paths]:
            result.get()

    def find_existing(self, ledger_ids: Iterable[int]) -> set[int]:
        results = {each: self._client.exists_async(ledger_path(each)) for each in ledger_ids}
        return {ledger_id for ledger_id, result in results.items() if result.get()}

    def read_metadata(self, ledger_ids: Iterable[int]) -> dict[int, bytes]:
        """Return the value of the znode of each ledger."""
        results = {each: self._client.get_async(ledger_path(each)) for each in ledger_ids}
        return {ledger_id: result.get()[0] for ledger_id, result in results.items()}

    def delete_managed_ledger(self, topic: str) -> None:
        """Delete the metadata of a topic by hand. Its ledgers stay."""
        self._client.delete(f"/managed-ledgers/public/default/persistent/{topic}", recursive=True)

    def list_children(self, path: str) -> list[str]:
        """Return the names below a znode, or nothing if it does not exist."""
        return list(self._client.get_children(path)) if self.has_znode(path) else []

    def has_znode(self, path: str) -> bool:
        return self._client.exists(path) is not None

    def delete_tree(self, path: str) -> None:
        """Delete a znode by hand, with all below it."""
        if self.has_znode(path):
            self._client.delete(path, recursive=True)

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger as people do by hand, whether or not something refers to it."""
        self._client.delete(ledger_path(ledger_id))

    @contextmanager
    def unregistered_bookie(self) -> Iterator[None]:
        """Take the registration of the only bookie away for the block. The bookie itself runs on."""
        (bookie_id,) = set(self._client.get_children(_BOOKIES)) - {"readonly"}
        self._client.delete(f"{_BOOKIES}/{bookie_id}")
        try:
            yield
        finally:
            self._cluster.register_bookie()

    def run_shell(self, *arguments: str) -> str:
        """Run BookKeeper's shell, and return what it prints."""
        home = self._cluster.home
        config = home.root / "bookkeeper-shell.conf"
        lines = [f"metadataServiceUri=zk+null://{self._cluster.zookeeper}/ledgers", "allowLoopback=true", ""]
        home.write_file(config, "\n".join(lines))
        command = self._cluster.define_tool("bookkeeper", "shell", *arguments)
        env = {**command.env, "BOOKIE_CONF": str(config), "BOOKIE_LOG_DIR": str(home.logs)}
        completed = subprocess.run(
            command.argv, cwd=command.cwd, env=env, capture_output=True, text=True, timeout=_SHELL_TIMEOUT_S, check=True
        )
        return completed.stdout

    def list_with_metadata(self) -> dict[int, ListedLedger]:
        return parse_ledger_list(self.run_shell("listledgers", "-meta"))


def ledger_path(ledger_id: int) -> str:
    digits = f"{ledger_id:010d}"
    return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def parse_ledger_list(output: str) -> dict[int, ListedLedger]:
    listed: dict[int, ListedLedger] = {}
    for text_id, metadata in _LISTED_LEDGER.findall(output):
        custom = {
            key: base64.b64decode(value) for key, value in _CUSTOM.findall(metadata.partition("customMetadata=")[2])
        }
        state = re.search(r"state=(\w+)", metadata)
        listed[int(text_id)] = ListedLedger(int(text_id), state[1] if state else "", custom)
    return listed
