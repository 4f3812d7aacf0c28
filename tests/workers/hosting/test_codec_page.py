"""The page that decrypts for Temporal's Web UI: for whom it does, and for nobody else."""

import asyncio
import io
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from aiohttp import ClientSession
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from logstore.errors import InvalidInput
from workers.client.data_converter import EncryptingCodec
from workers.hosting.page_server import (
    MAX_REQUEST_BYTES,
    PageRouter,
    add_payload_decode_endpoint,
    create_page_router,
    serve_pages,
)
from workers.hosting.readiness import Readiness
from workers.settings import Settings

_UI = "http://127.0.0.1:8233"
_PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"persistent://a/b/c"')
_CODEC = EncryptingCodec({"one": bytes(32)})


def _asked(
    ask: Callable[[ClientSession, str], Awaitable[None]], *, codec: EncryptingCodec = _CODEC, **given: object
) -> None:
    pages = create_page_router(Readiness(), "")
    add_payload_decode_endpoint(pages, codec, Settings.model_validate({"home": Path("/nowhere"), **given}))

    async def run() -> None:
        async with serve_pages("127.0.0.1:0", pages) as url, ClientSession() as session:
            await ask(session, f"{url}/codec/decode")

    asyncio.run(run())


async def _body(*payloads: Payload) -> str:
    return json_format.MessageToJson(Payloads(payloads=await _CODEC.encode(payloads)))


def test_web_ui_is_answered_what_payloads_say() -> None:
    """As its browser asks: first whether it may, then with the payloads as they stand in a history."""

    async def ask(session: ClientSession, url: str) -> None:
        wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type,x-namespace"}
        async with session.options(url, headers={"Origin": _UI} | wish) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == _UI
            assert answer.headers["Access-Control-Allow-Methods"] == "POST"
            assert {"content-type", "x-namespace"} <= set(answer.headers["Access-Control-Allow-Headers"].split(", "))
        async with session.post(url, data=await _body(_PLAIN, _PLAIN), headers={"Origin": _UI}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, _UI)
            found = json_format.Parse(await answer.text(), Payloads())
            assert list(found.payloads) == [_PLAIN, _PLAIN]
        async with session.post(url, data=await _body(_PLAIN)) as answer:  # Temporal's command names no origin
            assert answer.status == 200

    _asked(ask, codec_origin=f"{_UI}/")


def test_others_are_refused() -> None:
    """A page of another origin, what is no payload, what another key has encrypted, and anything but to decrypt."""

    async def ask(session: ClientSession, url: str) -> None:
        for method in ("OPTIONS", "POST"):
            async with session.request(method, url, headers={"Origin": "http://evil.test"}) as answer:
                assert answer.status == 403
                assert "Access-Control-Allow-Origin" not in answer.headers
        for body in (b"no payloads", b"\xff\xfe", b"[" * 100_000):
            odd = {"Origin": _UI, "Content-Type": "application/json; charset=none-such"}
            async with session.post(url, data=body, headers=odd) as answer:
                assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (400, _UI), body[:20]
        foreign = Payloads(payloads=await EncryptingCodec({"two": bytes(32)}).encode([_PLAIN]))
        async with session.post(url, data=json_format.MessageToJson(foreign)) as answer:
            assert answer.status == 400
            assert "expected a file with the key 'two'" in await answer.text()
        async with session.get(url) as answer:
            assert answer.status == 405
        async with session.post(url.replace("decode", "encode"), data=await _body(_PLAIN)) as answer:
            assert answer.status == 404

    _asked(ask, codec_origin=_UI)


def test_body_or_payloads_beyond_their_bounds_are_refused() -> None:
    """Before a parser makes objects of them: a megabyte of empty payloads takes hundreds as objects."""

    async def ask(session: ClientSession, url: str) -> None:
        for body, status in (
            (b'{"payloads": [' + b",".join([b"{}"] * 10_000) + b"]}", 200),
            (b'{"payloads": [' + b",".join([b"{}"] * 20_001) + b"]}", 400),
            (b'{"payloads": [' + b",".join([b"[]"] * 20_001) + b"]}", 400),
            (b" " * (MAX_REQUEST_BYTES + 1), 413),
        ):
            async with session.post(url, data=io.BytesIO(body)) as answer:
                assert answer.status == status
                text = await answer.text()
                assert status != 400 or text == "payloads: expected at most 10,000, found 'more'\n"

    _asked(ask, codec_origin=_UI)


class _SlowCodec(EncryptingCodec):
    """A codec that decrypts nothing until it is told to."""

    def __init__(self) -> None:
        super().__init__({})
        self.begun, self.may_end = threading.Event(), threading.Event()

    def decrypt(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.begun.set()
        assert self.may_end.wait(30)
        return super().decrypt(payloads)


def test_probes_are_answered_while_payloads_are_decrypted() -> None:
    """The event loop of the worker is not held up."""
    codec = _SlowCodec()

    async def ask(session: ClientSession, url: str) -> None:
        decoding = asyncio.create_task(session.post(url, data=await _body(_PLAIN)))
        assert await asyncio.to_thread(codec.begun.wait, 30)
        async with session.get(url.replace("/codec/decode", "/healthz")) as answer:
            assert answer.status == 200
        codec.may_end.set()
        async with await decoding as decoded:
            assert decoded.status == 400  # this codec has no key

    _asked(ask, codec=codec, codec_origin=_UI)


def test_page_is_off_unless_an_origin_is_named() -> None:
    """Nobody is decrypted for by default."""

    async def ask(session: ClientSession, url: str) -> None:
        async with session.post(url, data=await _body(_PLAIN)) as answer:
            assert answer.status == 404

    _asked(ask)


@pytest.mark.parametrize("address", ["0.0.0.0:9465", "off"])
def test_page_is_refused_where_others_than_this_machine_could_ask(address: str) -> None:
    """Whoever can ask it can read: a worker told so does not start."""
    settings = Settings(home=Path("/nowhere"), codec_origin=_UI, http_address=address)
    with pytest.raises(InvalidInput, match="codec_origin: expected none, because http_address is no loopback address"):
        add_payload_decode_endpoint(PageRouter(), _CODEC, settings)
