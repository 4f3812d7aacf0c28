"""Findings about a Pulsar cluster: what their statements say."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from logstore.errors import CorruptData
from logstore.positions import LedgerId
from logstore.reconciliation.findings import Finding, FindingKind, PlanOrScrubResult

VERSION: Final = "version"
"""Key in the statement of a znode: data version of the znode."""

CZXID: Final = "czxid"
"""Key in the statement of a znode: transaction that created the znode."""

COMPONENT: Final = "component"
"""Key in the statement of a ledger. The value is a `PulsarComponent`, or "" if the ledger does not state its owner."""

OWNER: Final = "owner"
"""Key in the statement: path of the owner's znode without a slash at its begin, or "" if the owner is not known."""

SOURCE: Final = "source"
"""Key in the statement of a dangling reference: field that refers to the ledger."""

VERDICT: Final = "verdict"
"""Key in the statement of a ledger. The value is a `LedgerVerdict`."""

CONFIRMED: Final = "confirmed"
"""Key in the statement of an orphan: whether nothing that was read may refer to it, "true" or "false".

In an incomplete plan something was not read. Use `is_confirmed`.
"""

CLUSTER: Final = "cluster"
"""Key in the statement of orphan objects: name of the cluster in their metadata."""

PARTS: Final = "parts"
"""Key in the statement of an orphan offload or an abandoned upload. The value is a JSON list of `RemovalPart`."""

RemovalPart = dict[str, str | int | None]
"""Object in one version, unfinished upload, or znode, as it was read. An apply removes it only as it is here."""

NAMES: Final = "names"
"""Key in the statement of a hazard: names of topics, applications or clusters, with `NAME_SEPARATOR` between them."""

NAME_SEPARATOR: Final = ", "

MAX_NAMES: Final = 1_000
"""Names in the statement of a hazard. Its count has all of them."""

_MAX_NAMES_IN_DETAIL: Final = 20


class Hazard(StrEnum):
    """State of a cluster that makes deletions dangerous. The key of a finding of this kind."""

    SHADOW_TOPICS = "shadow_topics"
    LOG_LEDGERS = "log_ledgers"
    FOREIGN_APPLICATION = "foreign_application"
    SHARED_BOOKKEEPER = "shared_bookkeeper"


_DETAILS: Final = {
    Hazard.SHADOW_TOPICS: "these topics list ledgers of other topics; the deletion of such a topic deletes its source's"
    " ledgers",
    Hazard.LOG_LEDGERS: "logs of functions, packages or the table service use ledgers without an owner; a tool that"
    " does not read these logs takes them for orphans",
    Hazard.FOREIGN_APPLICATION: "another application has ledgers in the same BookKeeper; ask it before you delete any",
    Hazard.SHARED_BOOKKEEPER: "further clusters use the same BookKeeper; nothing shows which of the ledgers are theirs",
}


def is_confirmed(finding: Finding, plan: PlanOrScrubResult) -> bool | None:
    """Return whether nothing can refer to an orphan, or `None` for a finding that states nothing about this.

    An incomplete plan confirms no orphan: what was not read may refer to any of them.
    """
    stated = finding.statement.get(CONFIRMED)
    return None if stated is None else stated == "true" and not plan.incomplete


def require_ledger_id(finding: Finding) -> LedgerId:
    """Return the ledger of a finding about a ledger.

    Raises:
        CorruptData: The finding has none.
    """
    if finding.ledger_id is None:
        raise CorruptData(f"{finding.kind} {finding.key}: expected a ledger id, found none")
    return finding.ledger_id


def parse_parts(finding: Finding) -> list[RemovalPart]:
    """Return the objects or the uploads of a finding, as the plan has read them."""
    parts: list[RemovalPart] = json.loads(finding.statement[PARTS])
    return parts


def make_hazard(hazard: Hazard, count: int, names: Sequence[str] = (), *, size_bytes: int = 0) -> Finding:
    """Return one finding for all cases of a hazard. `count` is the number of topics, ledgers or clusters."""
    shown = [*names[:_MAX_NAMES_IN_DETAIL], *(["..."] if len(names) > _MAX_NAMES_IN_DETAIL else [])]
    return Finding(
        kind=FindingKind.HAZARD,
        key=hazard.value,
        objects=count,
        size_bytes=size_bytes,
        statement={NAMES: NAME_SEPARATOR.join(names[:MAX_NAMES])} if names else {},
        detail=_DETAILS[hazard] + (f" ({NAME_SEPARATOR.join(shown)})" if shown else ""),
    )
