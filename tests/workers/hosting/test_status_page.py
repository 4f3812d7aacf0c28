"""The status page: what it shows, what it asks for, and that nothing of a name becomes markup."""

import asyncio
import json
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession

from logstore.deletion.intents import DeletionIntent, DeletionState, Outcome
from logstore.errors import StoreUnavailable
from logstore.log.ledgers import CopyKind
from logstore.ports.catalog.deletion import Claim, UndeletedCopyCounts
from logstore.ports.catalog.reconciliation import RunKind
from logstore.positions import LedgerId, TopicId
from logstore.reconciliation.findings import PlanOrScrubResult
from logstore.records.services.replicas import ReplicaStatus
from tests.activities.activity_world import World
from tests.activities.conftest import new_world, world  # noqa: F401 - fixtures
from tests.logstore.catalog.test_plans import _plans
from tests.screenshots import BROWSER, QUIET
from workers.hosting import store_status
from workers.hosting.page_server import PageRouter, serve_pages
from workers.hosting.readiness import Readiness
from workers.hosting.store_status import (
    MAX_ROWS_PER_LIST,
    CachedDocument,
    StatusReader,
    StoreStatusReader,
    WebUiLinks,
    add_status_pages,
)
from workers.pages import render_template

_UI = WebUiLinks("http://ui:8233/", "name space")
_EVIL = "persistent://public/default/%3Cscript%3Ealert(1)%3C%2Fscript%3E"


def _intent(number: int, **more: Any) -> DeletionIntent:
    facts: dict[str, Any] = {
        "batch_id": "b/1",
        "outcome": Outcome.RETRYING,
        "last_error": "<img src=x onerror=alert(2)>",
        **more,
    }
    return DeletionIntent(
        row_id=number,
        ledger_id=LedgerId(number),
        copy=CopyKind.LEDGER,
        generation=1,
        application="sexton",
        component="MANAGED_LEDGER",
        topic_id=TopicId(7),
        topic=_EVIL,
        keys={},
        **facts,
    )


def _read(world: World) -> dict[str, Any]:  # noqa: F811
    return StoreStatusReader(world.catalog, list, _UI).read()


def _shown(store: dict[str, Any], **more: Any) -> str:
    worker = {"worker_id": "w<1>", "ready": False, "phase": "starting", "checks": []}
    document = {
        "at": "2026-11-22T00:00:00Z",
        "worker": worker,
        "jobs": {"running": []},
        "replicas": {"known": []},
        **store,
        **more,
    }
    return render_template("status.html", status=json.loads(json.dumps(document)), most=MAX_ROWS_PER_LIST)


class _Tags(HTMLParser):
    """Names of tags, and the addresses of links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]
        assert not [name for name, _ in attrs if name.startswith("on")]


def test_page_of_an_empty_store_is_whole(world: World) -> None:  # noqa: F811
    """Every section, and no error."""
    store = _read(world)
    assert [name for name, section in store.items() if "error" in section] == []
    text = _shown(store)
    for heading in ("Store", "Deletions", "Transactions", "Delayed messages", "Owners", "Plans", "Jobs that run"):
        assert f"<h2>{heading}</h2>" in text


def test_page_walks_over_no_table_that_grows_with_the_store(world: World) -> None:  # noqa: F811
    """Ten million ledgers, and a month of deletions that are done, cost it nothing."""
    plans = _plans(world.catalog.database, StoreStatusReader(world.catalog, list, _UI).read)
    walked = {line.removeprefix("SCAN ").partition(" ")[0] for line in plans if line.startswith("SCAN")}
    assert walked & {"ledger", "ledger_copy", "ledger_list", "segment", "topic", "cursor", "pending_deletion"} == set()
    assert len(plans) > 10


def test_rows_name_their_jobs_and_lead_to_the_web_ui(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row of a batch to the batch, one that goes on alone to its own; dead letters stand out."""
    rows = {
        DeletionState.PENDING: [_intent(1), _intent(2, handed_to="delete-ledger/2/LEDGER/1"), _intent(4, batch_id="")],
        DeletionState.DEAD_LETTERED: [_intent(3, outcome=Outcome.METADATA_MISMATCH)],
    }
    asked: list[int] = []

    def listed(state: DeletionState, *, limit: int) -> list[DeletionIntent]:
        asked.append(limit)
        return rows[state]

    monkeypatch.setattr(world.catalog.deletions, "list_intents", listed)
    counted = UndeletedCopyCounts(estimated_inflight=2, dead_lettered=1, oldest_us=1)
    monkeypatch.setattr(world.catalog.deletions, "count_undeleted_copies", lambda: counted)
    found = _read(world)["deletions"]
    assert [one["workflow_id"] for one in found["inflight"]] == ["delete-ledgers/b/1", "delete-ledger/2/LEDGER/1", None]
    assert found["inflight"][2]["workflow_type"] == "sweep-deletions", "what no batch has is found by the sweep"
    jobs = "http://ui:8233/namespaces/name%20space/workflows/"
    assert found["inflight"][0]["url"] == f"{jobs}delete-ledgers%2Fb%2F1"
    assert asked == [MAX_ROWS_PER_LIST] * 2, "never more than are shown"
    text = _shown(_read(world))
    assert f'href="{jobs}delete-ledgers%2Fb%2F1"' in text
    assert text.count('<td class="w">LEDGER</td>') == 4
    assert 'class="tile alarm"><b>1</b><span>dead letters' in text


def test_names_and_errors_are_text_and_nothing_else(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic may be called anything, and an error may quote it; the page runs no script and loads nothing."""
    monkeypatch.setattr(world.catalog.deletions, "list_intents", lambda state, limit: [_intent(1)])
    text = _shown(_read(world), jobs={"error": "<iframe src=//evil>"})
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    page = _Tags(text)
    assert page.tags & {"script", "img", "iframe", "form", "button", "input", "link", "object"} == set()
    assert all(link.startswith(("http://ui:8233/", "/status.json", "/metrics")) for link in page.links)
    assert "default-src &#39;none&#39;" in text


def test_page_shows_plans_of_a_cluster_and_why_one_is_incomplete(world: World) -> None:  # noqa: F811
    """A store without any has no such section."""
    assert "Plans of the Pulsar cluster" not in _shown(_read(world))
    runs, begun = world.catalog.reconciliation, {"cluster": "<east>", "identity": "5f0a/1/2"}
    for run_id in ("pulsar-1", "pulsar-2"):
        runs.open_run(
            run_id,
            RunKind.CLUSTER_PLAN,
            claim=Claim(workflow_id="tests", run_id="", ttl_s=60),
            summary=begun,
        )
    result = PlanOrScrubResult(
        findings={"orphan_ledger": 3}, size_bytes={}, ledgers=18, before_us=1, report="", incomplete=["no <bookie>"]
    )
    runs.close_run("pulsar-1", {**begun, "result": asdict(result)})
    rows = {row["run_id"]: row for row in _read(world)["cluster_plans"]["newest"]}
    assert (rows["pulsar-1"]["complete"], rows["pulsar-2"]["complete"]) == (False, None)
    assert rows["pulsar-1"]["workflow_id"] == "plan-pulsar/pulsar-1"
    text = _shown(_read(world))
    assert "<h2>Plans of the Pulsar cluster</h2>" in text
    assert '<td class="bad">no &lt;bookie&gt;</td><td>orphan_ledger: 3</td>' in text
    assert "&lt;east&gt;" in text


def test_address_of_a_web_ui_that_is_none_makes_no_link() -> None:
    """Neither where none is known nor where it would run something."""
    for address in ("", "javascript:alert(1)//"):
        assert WebUiLinks(address, "default").link_job("w")["url"] == ""


def test_section_that_cannot_be_read_says_so_and_the_others_stand(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database is away for one question."""

    def away() -> UndeletedCopyCounts:
        raise StoreUnavailable("the <database> is away")

    monkeypatch.setattr(world.catalog.deletions, "count_undeleted_copies", away)
    store = _read(world)
    assert store["deletions"] == {"error": "the <database> is away"}
    text = _shown(store)
    assert "cannot be read: the &lt;database&gt; is away" in text
    assert "<h2>Owners</h2>" in text
    _shown({name: {"error": "away"} for name in store})


def test_section_with_a_row_of_another_build_harms_no_other(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page of an older build, after a rollback: it says of what it cannot read that it cannot."""

    def of_another_build() -> UndeletedCopyCounts:
        raise ValueError("'SHREDDED' is not a valid Outcome")

    monkeypatch.setattr(world.catalog.deletions, "count_undeleted_copies", of_another_build)
    store = _read(world)
    assert store["deletions"] == {"error": "ValueError"}
    assert "error" not in store["owners"]


def test_service_that_hangs_costs_the_page_its_own_section_alone(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that takes requests and never answers; it is asked once, however often the page is loaded."""
    mended, asked = threading.Event(), [0]

    def hang() -> list[ReplicaStatus]:
        asked[0] += 1
        mended.wait()
        return [ReplicaStatus(replica="far", state=None, manifest=0, newest=0, lag_s=None, at_us=None)]

    async def nothing(*_: object, **__: object) -> list[Any]:
        return []

    monkeypatch.setattr(store_status, "query_workflows", nothing)

    async def look() -> None:
        store = StoreStatusReader(world.catalog, hang, _UI)
        document = StatusReader("w1", store, SimpleNamespace(), Readiness(), _UI, answer_timeout_s=0.05)  # type: ignore[arg-type]
        try:
            found = await document.read()
            while "error" in found["owners"]:  # a machine with much to do
                found = await document.read()
            await document.read()
        finally:
            mended.set()
        assert found["replicas"] == {"error": "no answer within 0.05 s"}
        assert "cannot be read: no answer within" in render_template(
            "status.html", status=found, most=MAX_ROWS_PER_LIST
        )
        assert asked == [1]

    asyncio.run(look())


def test_many_who_look_at_once_ask_the_store_once_in_some_seconds() -> None:
    """However often the page is loaded."""
    reads, now = [0], [0.0]

    async def read() -> dict[str, Any]:
        reads[0] += 1
        await asyncio.sleep(0)
        return {"read": reads[0]}

    async def look() -> None:
        kept = CachedDocument(read, max_age_s=10, clock=lambda: now[0])
        assert {one["read"] for one in await asyncio.gather(*(kept.get() for _ in range(20)))} == {1}
        now[0] = 9.9
        assert await kept.get() == {"read": 1}
        now[0] = 10.0
        assert await kept.get() == {"read": 2}

    asyncio.run(look())


def _document(world: World) -> StatusReader:  # noqa: F811
    store = StoreStatusReader(world.catalog, list, _UI)
    return StatusReader("w1", store, SimpleNamespace(), Readiness(), _UI)  # type: ignore[arg-type]


def test_page_and_document_are_served_read_only(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    serves: Callable[..., None],
) -> None:
    """The same as HTML and as JSON; no other method than GET has an answer."""

    async def nothing(*_: object, **__: object) -> list[Any]:
        return []

    monkeypatch.setattr(store_status, "query_workflows", nothing)

    async def ask(session: ClientSession, url: str) -> None:
        async with session.get(f"{url}/status.json") as answer:
            told = await answer.json()
        assert (told["worker"]["worker_id"], told["jobs"]) == ("w1", {"running": []})
        async with session.get(f"{url}/status") as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Cache-Control"] == "no-store"
            assert told["totals"]["catalog_id"] in await answer.text()
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with session.request(method, f"{url}/status") as answer:
                assert answer.status == 405

    serves(ask, _document(world))


@pytest.mark.where_allowed  # a browser is no package of Python: a machine has it or not
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on the PATH")
def test_page_in_a_real_browser_shows_names_and_runs_nothing(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    serves: Callable[..., None],
) -> None:
    """What the browser has made of it: every section, the evil name as text, and its own title."""
    owns = _intent(
        1, last_error="<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    )
    monkeypatch.setattr(world.catalog.deletions, "list_intents", lambda state, limit: [owns])

    async def away(*_: object, **__: object) -> list[Any]:
        raise TimeoutError

    monkeypatch.setattr(store_status, "query_workflows", away)

    async def ask(_: ClientSession, url: str) -> None:
        argv = [*BROWSER, *QUIET, f"--user-data-dir={tmp_path}", "--dump-dom", f"{url}/status"]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=90, check=True)
        assert "<title>Sexton: status of the store</title>" in done.stdout
        assert "persistent://public/default/&lt;script&gt;alert(1)&lt;/script&gt;" in done.stdout
        page = _Tags(done.stdout)
        assert page.tags & {"script", "img"} == set()
        assert {"table", "caption", "time", "ul"} <= page.tags
        assert "Temporal does not answer" in done.stdout

    serves(ask, _document(world))


@pytest.fixture
def serves() -> Callable[..., None]:
    """Asks of the pages while they are served on loopback."""

    def run(ask: Callable[[ClientSession, str], Any], document: StatusReader) -> None:
        async def asked() -> None:
            pages = PageRouter()
            add_status_pages(pages, document)
            async with serve_pages("127.0.0.1:0", pages) as url, ClientSession() as session:
                await ask(session, url)

        asyncio.run(asked())

    return run
