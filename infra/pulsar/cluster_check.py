"""Check of what a plan needs of a cluster, and the cluster's identity."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from infra.pulsar.bookie_reads import BookieDirectory
from infra.pulsar.broker_admin import AdminRequestFailed, BrokerAdmin, require_field
from infra.pulsar.broker_registrations import BROKERS, RegisteredBroker, list_registered_brokers
from infra.pulsar.cluster_access import PulsarCluster
from infra.pulsar.ledger_scan import list_leaf_folders
from infra.pulsar.policy_directory import POLICIES
from infra.pulsar.znode_reads import ZnodeReader
from logstore.errors import InvalidInput, SextonError, StoreUnavailable
from logstore.pulsar.cluster_check import ClusterCapability, ClusterCheck
from logstore.pulsar.unreadable_metadata import UnreadableMetadata
from logstore.pulsar.znode_names import MANAGED_LEDGERS

_LEDGER_MANAGERS: Final = ("HierarchicalLedgerManagerFactory", "LongHierarchicalLedgerManagerFactory")
_LAYOUT_VERSION: Final = "2"
_CLUSTERS: Final = "admin/clusters"
_GLOBAL: Final = "global"  # entry of the list of clusters that is none
_OWNED_BUNDLES: Final = "namespace/pulsar"  # a broker owns a namespace here, named by its cluster and by its own id
_ADMIN_TIMEOUT_S: Final = 5.0  # a person waits
_MAX_NAMES: Final = 3  # in a detail
_ZOOKEEPER_URL: Final = re.compile(r"(zk:[^/]*|[^:/,]+:\d+(,[^:/,]+:\d+)*)(?P<chroot>/.*)?")
_LEDGERS_URI: Final = re.compile(r"^([a-z+-]+:)*(//)?[^/]*")  # all of a URI that comes before its path
_BROKER_SETTINGS: Final = "/admin/v2/brokers/internal-configuration"
_NO_ADMIN: Final = "pulsar_admin_url is not set"


def check_cluster(cluster: PulsarCluster) -> ClusterCheck:
    """Read what a plan needs. Nothing is written, and no ledger is read.

    Raises:
        ServiceFailed: The ZooKeeper of the cluster does not answer, or refuses the identity.
    """
    with ExitStack() as sessions:
        reader = sessions.enter_context(cluster.open_reader(parallel_sessions=1))
        configuration: ZnodeReader | SextonError = reader
        if cluster.configuration_store:
            try:
                configuration = sessions.enter_context(cluster.open_configuration_reader(parallel_sessions=1))
            except SextonError as error:
                configuration = error
        probe = _ClusterProbe(cluster, reader, configuration)
        checks = {
            "layout": probe.check_layout,
            "ledger_manager": probe.check_ledger_manager,
            "identity": probe.check_identity,
            "metadata_service": probe.check_metadata_service,
            "managed_ledgers": probe.check_managed_ledgers,
            "bookies": probe.check_bookies,
            "brokers": probe.check_brokers,
            "admin": probe.check_admin,
            "offloads": probe.check_offloads,
            "shared_clusters": probe.check_shared_clusters,
            "configuration_store": probe.check_configuration_store,
        }
        return ClusterCheck(
            cluster=probe.name,
            identity=read_cluster_identity(reader, cluster.ledgers_root),
            capabilities=tuple(_make_capability(name, check) for name, check in checks.items()),
        )


def list_cluster_names(reader: ZnodeReader) -> list[str]:
    """Return the clusters that a configuration store knows, ascending: this cluster, and those it replicates with."""
    ((_, names),) = reader.list_children([_CLUSTERS])
    return [name for name in names or () if name != _GLOBAL]


def list_possible_cluster_names(configuration: ZnodeReader, own_name: str) -> list[str]:
    """Return the name that the brokers say, or else the clusters that the configuration store knows."""
    return [own_name] if own_name else list_cluster_names(configuration)


def find_own_cluster_name(reader: ZnodeReader, brokers: Collection[RegisteredBroker]) -> str:
    """Return the cluster of the registered brokers, or "" if its brokers do not say it in ZooKeeper.

    A broker owns the namespace `pulsar/<cluster>/<broker>`, with its heartbeats. Brokers whose load manager is
    `ExtensibleLoadManagerImpl` keep their namespaces elsewhere.
    """
    ((_, names),) = reader.list_children([_OWNED_BUNDLES])
    broker_ids = {broker.id for broker in brokers}
    listed = reader.list_children([f"{_OWNED_BUNDLES}/{name}" for name in names or ()])
    own_names = [path.rpartition("/")[2] for path, children in listed if broker_ids & set(children or ())]
    return own_names[0] if len(own_names) == 1 else ""


def require_admin_api_of_cluster(
    admin: BrokerAdmin, brokers: Collection[RegisteredBroker], possible_names: Sequence[str]
) -> None:
    """Raise `InvalidInput` if the admin API is that of another cluster. For other errors see `BrokerAdmin`.

    `brokers` are those of the cluster. If the cluster has several possible names, only names are compared.
    """
    clusters = set(map(str, admin.read_json("/admin/v2/clusters", list)))
    if not clusters.intersection(possible_names):
        expected = f"the API of cluster {' or '.join(possible_names) or '(no name)'}"
        raise InvalidInput("pulsar_admin_url", expected=expected, found=f"clusters {', '.join(sorted(clusters))}")
    if len(possible_names) == 1:
        active = admin.read_json(f"/admin/v2/brokers/{possible_names[0]}", list)
        if not {broker.id for broker in brokers}.intersection(map(str, active)):
            expected = f"the API of a broker in /{BROKERS}"
            raise InvalidInput("pulsar_admin_url", expected=expected, found=f"brokers {active}")


def read_cluster_identity(reader: ZnodeReader, ledgers_root: str) -> str:
    """Return the id of the BookKeeper cluster, if it has one, and transaction and time of the creation of both roots.

    The transactions alone are not enough: a standalone cluster has no id, and one that was wiped and made anew creates
    the roots in the same transactions.
    """
    paths = [f"{ledgers_root}/INSTANCEID", ledgers_root, MANAGED_LEDGERS]
    instance, ledgers, managed_ledgers = (znode for _, znode in reader.read(paths))
    instance_id = instance.data.decode(errors="replace") if instance else "no INSTANCEID"
    roots = [f"{znode.czxid:x}@{znode.created_ms}" if znode else "absent" for znode in (ledgers, managed_ledgers)]
    return "/".join([instance_id, *roots])


def _make_capability(name: str, check: Callable[[], str]) -> ClusterCapability:
    try:
        return ClusterCapability(name=name, ok=True, detail=check())
    except SextonError as error:
        return ClusterCapability(name=name, ok=False, detail=str(error))


@dataclass
class _ClusterProbe:
    """Checks of one cluster. Each returns a detail, or raises an error that says what is missing."""

    cluster: PulsarCluster
    reader: ZnodeReader
    configuration: ZnodeReader | SextonError  # an error if its session could not be opened

    @cached_property
    def brokers(self) -> list[RegisteredBroker]:
        return list_registered_brokers(self.reader)

    @cached_property
    def admin(self) -> BrokerAdmin | None:
        if self.cluster.admin is None:
            return None
        return BrokerAdmin(self.cluster.admin, self.brokers, timeout_s=_ADMIN_TIMEOUT_S)

    @cached_property
    def broker_settings(self) -> dict[str, Any] | None:
        """Settings of a broker, or `None` if no admin API is set or answers. The check `admin` says why."""
        try:
            return self.admin.read_json(_BROKER_SETTINGS, dict) if self.admin else None
        except (AdminRequestFailed, InvalidInput, UnreadableMetadata):
            return None

    @cached_property
    def own_name(self) -> str:
        """The name of the brokers' cluster, or "" if they do not say it."""
        try:
            return find_own_cluster_name(self.reader, self.brokers)
        except UnreadableMetadata:
            return ""

    @cached_property
    def possible_names(self) -> list[str]:
        configuration = self.reader if isinstance(self.configuration, SextonError) else self.configuration
        return list_possible_cluster_names(configuration, self.own_name)

    @property
    def name(self) -> str:
        """The cluster's name, or "" if several are possible or none is known."""
        return self.possible_names[0] if len(self.possible_names) == 1 else ""

    def check_layout(self) -> str:
        root = self.cluster.ledgers_root
        folders = list_leaf_folders(self.reader, root)
        version = self._read_layout().partition("\n")[0]
        if version not in {"", _LAYOUT_VERSION}:
            raise UnreadableMetadata(f"/{root}/LAYOUT", expected=f"version {_LAYOUT_VERSION}", found=repr(version))
        return f"hierarchical, {_format_count(len(folders), 'folder')} of ledgers"

    def check_ledger_manager(self) -> str:
        layout = self._read_layout()
        factory = layout.partition("\n")[2].partition(":")[0].rpartition(".")[2]
        if layout and factory not in _LEDGER_MANAGERS:
            path = f"/{self.cluster.ledgers_root}/LAYOUT"
            raise UnreadableMetadata(path, expected=" or ".join(_LEDGER_MANAGERS), found=repr(layout))
        return factory or "not stated, because there is no LAYOUT"

    def _read_layout(self) -> str:
        """Return the text of the layout, or "" without one."""
        ((_, layout),) = self.reader.read([f"{self.cluster.ledgers_root}/LAYOUT"])
        if layout is not None and not layout.data:
            raise UnreadableMetadata(f"/{self.cluster.ledgers_root}/LAYOUT", expected="a layout", found="nothing")
        return layout.data.decode(errors="replace") if layout else ""

    def check_identity(self) -> str:
        root = self.cluster.ledgers_root
        instance, *roots = self.reader.read([f"{root}/INSTANCEID", root, MANAGED_LEDGERS])
        for path, znode in roots:
            if znode is None:
                raise UnreadableMetadata(f"/{path}", expected="the metadata of a Pulsar cluster", found="no such znode")
        pins = "INSTANCEID and the creation" if instance[1] else "no INSTANCEID; the creation"
        return f"{pins} of /{root} and /{MANAGED_LEDGERS} identify the cluster"

    def check_metadata_service(self) -> str:
        """Compare where the brokers keep metadata with the settings."""
        if self.admin is None:
            return f"ZooKeeper; not compared with settings of brokers, because {_NO_ADMIN}"
        if self.broker_settings is None:
            return "ZooKeeper; not compared with settings of brokers, because the admin API does not answer"
        url = require_field(self.broker_settings, "metadataStoreUrl", str, _BROKER_SETTINGS)
        chroot = self.cluster.zookeeper.partition("/")[2]
        if _find_chroot(url) != chroot:
            expected = f"the metadata store of the brokers, {url}"
            raise InvalidInput("pulsar_zookeeper", expected=expected, found=f"ZooKeeper, below /{chroot}")
        self._require_ledgers_root(self.broker_settings, chroot)
        return f"ZooKeeper, below /{chroot}, as the brokers say"

    def _require_ledgers_root(self, settings: Mapping[str, Any], chroot: str) -> None:
        """Compare the ledgers of the brokers with the settings. Brokers name a URI only if they do not use the default.

        Some URIs include the last part of the path, and others do not.
        """
        root, uri = self.cluster.ledgers_root, settings.get("bookkeeperMetadataServiceUri")
        expected = uri or settings.get("ledgersRootPath")
        if not isinstance(expected, str):
            return
        if uri:
            path = (_LEDGERS_URI.sub("", expected)).strip("/")
            is_same = f"{chroot}/{root}".strip("/") in {path, f"{path}/ledgers".strip("/")}
        else:
            is_same = expected.strip("/") == root
        if not is_same:
            found = f"/{root}{f' below /{chroot}' if chroot else ''}"
            raise InvalidInput("pulsar_ledgers_root", expected=f"the ledgers of the brokers, {expected}", found=found)

    def check_managed_ledgers(self) -> str:
        ((_, tenants),) = self.reader.list_children([MANAGED_LEDGERS])
        if not tenants:
            raise UnreadableMetadata(f"/{MANAGED_LEDGERS}", expected="the tenants of a Pulsar cluster", found="none")
        return _format_count(len(tenants), "tenant")

    def check_bookies(self) -> str:
        available = f"{self.cluster.ledgers_root}/available"
        read_only = f"{available}/readonly"
        listed = dict(self.reader.list_children([available, read_only]))
        bookie_ids = [name for name in listed[available] or () if name != "readonly"] + (listed[read_only] or [])
        directory = BookieDirectory(self.reader, self.cluster.ledgers_root)
        without_address = [bookie_id for bookie_id in bookie_ids if directory.find_address(bookie_id) is None]
        if not bookie_ids or without_address:
            found = f"none for {', '.join(without_address)}" if without_address else "no bookie"
            raise UnreadableMetadata(f"/{available}", expected="bookies with addresses", found=found)
        return f"{_format_count(len(bookie_ids), 'bookie')}, {len(listed[read_only] or []):,} of them read-only"

    def check_brokers(self) -> str:
        if not self.brokers:
            found = "none. Start a broker; if brokers run, they may keep their metadata elsewhere now"
            raise UnreadableMetadata(f"/{BROKERS}", expected="registered brokers", found=found)
        names = [broker.id for broker in self.brokers[:_MAX_NAMES]]
        more = ["…"] if len(self.brokers) > _MAX_NAMES else []
        return f"{_format_count(len(self.brokers), 'broker')}: {', '.join([*names, *more])}"

    def check_admin(self) -> str:
        if self.admin is None:
            return "not set: compacted ledgers stay unconfirmed"
        if (answer := self.admin.read_text("/admin/v2/brokers/ready")) != "ok":
            raise InvalidInput("pulsar_admin_url", expected="a ready broker", found=answer)
        for broker in self.brokers:  # raises if the broker has no address with this scheme
            self.admin.choose_url(broker)
        require_admin_api_of_cluster(self.admin, self.brokers, self.possible_names)
        return f"ready, Pulsar {self.admin.read_text('/admin/v2/brokers/version')}"

    def check_offloads(self) -> str:
        if self.cluster.offloads is None:
            return "not set: objects of offloads are not checked"
        store = self.cluster.offloads.store_that_fails_fast()
        try:
            is_empty = next(store.list("", first_page=1), None) is None
        except SextonError as error:  # its advice names the settings of Sexton's own buckets
            advice = str(error).replace("s3_", "pulsar_offload_")
            raise StoreUnavailable(f"pulsar_offload_bucket: expected a bucket that can be listed. {advice}") from None
        return f"bucket {self.cluster.offloads.bucket} can be listed{', and is empty' if is_empty else ''}"

    def check_shared_clusters(self) -> str:
        names = self.cluster.shared_clusters
        if not names:
            return "none named: all ledgers of BookKeeper count as those of this cluster"
        if self.name in names:
            raise InvalidInput("pulsar_shared_clusters", expected=f"clusters other than {self.name}", found=self.name)
        return f"{', '.join(names)}: a ledger to which nothing refers here may belong to them"

    def check_configuration_store(self) -> str:
        if isinstance(self.configuration, SextonError):
            raise self.configuration
        clusters = list_cluster_names(self.configuration)
        ((_, tenants),) = self.configuration.list_children([POLICIES])
        if not clusters or not tenants:
            found = f"{_format_count(len(clusters), 'cluster')} and {_format_count(len(tenants or ()), 'tenant')}"
            advice = ". If the cluster has its own configuration store, set pulsar_configuration_store"
            expected = "clusters and tenants"
            raise UnreadableMetadata(f"/{_CLUSTERS} and /{POLICIES}", expected=expected, found=found + advice)
        if self.own_name and self.own_name not in clusters:
            expected = f"the cluster of the brokers, {self.own_name}"
            advice = "Set pulsar_configuration_store to the store that the brokers use"
            found = f"{', '.join(clusters)}. {advice}"
            raise UnreadableMetadata(f"/{_CLUSTERS}", expected=expected, found=found)
        self._require_configuration_store()
        place = "pulsar_configuration_store" if self.cluster.configuration_store else "the same as pulsar_zookeeper"
        return f"{place}, {_format_count(len(clusters), 'cluster')}, {_format_count(len(tenants), 'tenant')}"

    def _require_configuration_store(self) -> None:
        """Compare where the brokers keep policies with the settings. Only names that brokers give can be compared."""
        settings = self.broker_settings or {}
        url, metadata_url = settings.get("configurationMetadataStoreUrl"), settings.get("metadataStoreUrl")
        if not isinstance(url, str) or not isinstance(metadata_url, str) or not url:
            return
        configured = self.cluster.configuration_store
        chroot = (configured or self.cluster.zookeeper).partition("/")[2]
        is_same_ensemble = configured or _list_hosts(url) == _list_hosts(metadata_url)
        if _find_chroot(url) != chroot or not is_same_ensemble:
            expected = f"the configuration store of the brokers, {url}"
            found = configured or "the same as pulsar_zookeeper"
            raise InvalidInput("pulsar_configuration_store", expected=expected, found=found)


def _find_chroot(url: str) -> str | None:
    """Return the chroot of a metadata store without slashes at its ends, or `None` if it is not a ZooKeeper."""
    match = _ZOOKEEPER_URL.fullmatch(url)
    return (match["chroot"] or "").strip("/") if match else None


def _list_hosts(url: str) -> list[str]:
    return sorted(url.removeprefix("zk:").partition("/")[0].split(","))


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
