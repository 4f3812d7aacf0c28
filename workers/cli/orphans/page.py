"""A plan as one HTML file: charts as inline SVG and the first findings; no other file and no script is needed.

Findings pass by once for the charts and once for the table, a page of them in memory at a time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from logstore.reconciliation.findings import FindingKind
from logstore.whole_files import replacing
from workers.pages.texts import harmless, topic_shown

if TYPE_CHECKING:
    from logstore.reconciliation.findings import Finding
    from workers.cli.orphans.report import Reported

_TOPICS: Final = 20
_MOST_TOPICS: Final = 10_000  # counted at a time: beyond, the smallest half is forgotten
_DAY_US: Final = 86_400_000_000
_AGES: Final = (
    ("under a week", 7),
    ("a week to a month", 30),
    ("1 to 3 months", 91),
    ("3 to 12 months", 365),
)
_OLDER: Final = "over a year"
_UNKNOWN: Final = "unknown"
_COLUMNS: Final = ("id", "kind", "topic", "ledger_id", "where", "objects", "size_bytes", "newest", "detail")
_FATE: Final = ("what became of it",)
_TOGETHER: Final = {"where": ("bucket", "key"), "what became of it": ("fate", "reason")}  # in one cell, to fit a screen
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --paper: #ffffff; --line: #d9d9e0;
  --bar: #3e63dd; --alarm: #ce2c31; --card: #f7f7f9; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --soft: #b0b4ba; --paper: #111113; --line: #363a3f;
  --bar: #7da0ff; --alarm: #ff8b87; --card: #1b1c1f; } }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, dl { color: var(--soft); margin: .2rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dd { margin: 0; }
.alarm { color: var(--alarm); font-weight: 600; }
figure { margin: 1rem 0; padding: 1rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
figcaption { font-weight: 600; margin-bottom: .6rem; } svg { width: 100%; max-width: 60rem; height: auto; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); } svg .value { fill: var(--soft); }
svg .bar { fill: var(--bar); } svg .alarming { fill: var(--alarm); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
th { white-space: nowrap; } td { overflow-wrap: anywhere; min-width: 5rem; }
td.number { text-align: right; min-width: 0; white-space: nowrap; font-variant-numeric: tabular-nums; }
"""


_ROW: Final = 26  # pixels of one bar with its gap
_NAME: Final = 220  # pixels for names
_BAR: Final = 420
_VALUE: Final = 120
_LONGEST_NAME: Final = 34  # characters; the whole one is in the tooltip


@dataclass(slots=True)
class _Sums:
    """Counts for the charts, of findings that passed by."""

    kinds: Counter[FindingKind] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)  # bytes
    ages: Counter[str] = field(default_factory=Counter)
    forgotten: bool = False  # topics are more than are counted

    def add(self, finding: "Finding", before_us: int) -> None:
        self.kinds[finding.kind] += 1
        self.ages[_age(finding.newest_us, before_us)] += 1
        if finding.size_bytes and finding.kind is not FindingKind.MISSING_DATA:  # those bytes are nowhere
            self.topics[finding.topic] += finding.size_bytes
            if len(self.topics) > _MOST_TOPICS:
                self.topics = Counter(dict(self.topics.most_common(_MOST_TOPICS // 2)))
                self.forgotten = True


def write_page(found: "Reported", path: Path, *, kind: FindingKind | None, limit: int) -> int:
    """Write the page, the whole of it or nothing; how many findings there are.

    Args:
        found: The plan.
        path: Of the file.
        kind: Only findings of this kind; None: of every kind.
        limit: Of rows of the table.
    """
    sums = _Sums()
    for _, finding in found.files.all(kind):
        sums.add(finding, found.result.before_us)
    with replacing(path) as new, new.open("w", encoding="utf-8") as file:
        file.writelines(_parts(found, sums, kind, limit))
    return sum(sums.kinds.values())


def _parts(found: "Reported", sums: _Sums, kind: FindingKind | None, limit: int) -> Iterator[str]:
    title = f"What the plan {found.plan.run_id} found"
    yield "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
    yield '<meta name=viewport content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>\n"
    yield from _beginning(found, sums)
    kinds = [
        _Bar(one.value, sums.kinds[one], f"{sums.kinds[one]:,}", one is FindingKind.MISSING_DATA) for one in FindingKind
    ]
    yield _bars("Findings by kind", kinds if kind is None else [one for one in kinds if one.name == kind.value])
    named = [(topic_shown(name) or "of no known topic", size) for name, size in sums.topics.most_common(_TOPICS)]
    topics = [_Bar(name, size, _size(size)) for name, size in named]
    about = ", about: there are very many topics" if sums.forgotten else ""
    yield _bars(f"Bytes in storage by topic, the first {_TOPICS}{about}", topics)
    ages = [*(name for name, _ in _AGES), _OLDER, _UNKNOWN]
    counts = [_Bar(name, sums.ages[name], f"{sums.ages[name]:,}") for name in ages]
    yield _bars("Ages of the newest object at the plan", counts)
    yield from _table(found, sums, kind, limit)
    yield "</body></html>\n"


def _beginning(found: "Reported", sums: _Sums) -> Iterator[str]:
    lost = sums.kinds[FindingKind.MISSING_DATA]
    if lost:
        yield f"<p class=alarm>Data is missing: {lost:,} {'finding' if lost == 1 else 'findings'}.</p>\n"
    told = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in found.summary().items())
    yield f"<dl>{told}</dl>\n"
    for sentence in found.result.left_out:
        yield f"<p>Not compared: {_text(sentence)}</p>\n"


def _table(found: "Reported", sums: _Sums, kind: FindingKind | None, limit: int) -> Iterator[str]:
    rows, columns = sum(sums.kinds.values()), (*_COLUMNS, *(_FATE if found.applied else ()))
    yield f"<h2>Findings</h2><p>{min(rows, limit):,} of {rows:,}</p><div class=scroll><table><thead><tr>"
    yield "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns) + "</tr></thead><tbody>\n"
    for row in islice(found.rows(kind), limit):
        yield "<tr>" + "".join(_cell(row, name) for name in columns) + "</tr>\n"
    yield "</tbody></table></div>"


def _cell(row: Mapping[str, object], name: str) -> str:
    if isinstance(row.get(name), int):
        return f"<td class=number>{row[name] if name in {'id', 'ledger_id'} else f'{row[name]:,}'}</td>"
    values = [row[one] for one in _TOGETHER.get(name, (name,))]
    return f"<td>{'<br>'.join(_text(str(value)) for value in values if value not in {None, ''})}</td>"


def _text(value: str) -> str:
    """As text of the page; a character that cannot be seen, or turns the direction of others, is spelled out."""
    return escape(harmless(value))


def _age(newest_us: int | None, before_us: int) -> str:
    if newest_us is None:
        return _UNKNOWN
    days = (before_us - newest_us) / _DAY_US
    return next((name for name, most in _AGES if days < most), _OLDER)


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} PiB"


@dataclass(frozen=True, slots=True)
class _Bar:
    """One bar."""

    name: str
    value: int  # 0 or more
    told: str  # the value in words
    alarming: bool = False


def _bars(title: str, found: Sequence[_Bar]) -> str:
    """A chart of horizontal bars, as long as their values; one without bars says that there is nothing."""
    if not found:
        return f"<figure><figcaption>{escape(title)}</figcaption><p>nothing</p></figure>"
    most = max(1, *(one.value for one in found))
    height = _ROW * len(found)
    drawn = "".join(_drawn(at, one, most) for at, one in enumerate(found))
    width = _NAME + _BAR + _VALUE
    chart = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{drawn}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{chart}</figure>"


def _drawn(at: int, one: _Bar, most: int) -> str:
    top, middle = at * _ROW + 3, at * _ROW + _ROW // 2 + 4
    length = max(2, round(_BAR * one.value / most)) if one.value else 0
    kind = "bar alarming" if one.alarming and one.value else "bar"
    whole = _text(f"{one.name}: {one.told}")
    return (
        f"<g><title>{whole}</title>"
        f'<text class="name" x="{_NAME - 8}" y="{middle}" text-anchor="end">{_text(_short(one.name))}</text>'
        f'<rect class="{kind}" x="{_NAME}" y="{top}" width="{length}" height="{_ROW - 6}" rx="3"/>'
        f'<text class="value" x="{_NAME + length + 8}" y="{middle}">{escape(one.told)}</text></g>'
    )


def _short(name: str) -> str:
    """The end of a long name says more than its beginning."""
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
