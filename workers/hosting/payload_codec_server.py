"""Codec server for Temporal's Web UI: a browser asks this worker to decrypt workflow payloads (`POST /codec/decode`).

1. The endpoint exists only if `codec_origin` names the Web UI. It is served only on loopback addresses and refuses
   other origins. Everyone who can send a request can read workflow payloads.
2. The endpoint encrypts nothing, so nobody can start jobs through it.

Source: Temporal, "Codec Server"; WHATWG Fetch, "CORS protocol".
"""

import asyncio
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads

from infra.telemetry.metrics_endpoint import resolve_ip_address_and_port
from logstore.errors import InvalidInput
from workers.client.payload_encryption import EncryptingCodec
from workers.hosting.page_server import PageRouter, RequestHandler
from workers.settings import OFF, Settings

_SETTING: Final = "codec_origin"
_PATH: Final = "/codec/decode"
_ALLOWED_HEADERS: Final = "content-type, x-namespace, authorization"
_PREFLIGHT_MAX_AGE_S: Final = "600"
_MAX_PAYLOADS: Final = 10_000
_MAX_OPENING_BRACKETS: Final = 2 * _MAX_PAYLOADS + 2  # two per workflow payload; one per document and list


def add_payload_decode_endpoint(pages: PageRouter, codec: EncryptingCodec, settings: Settings) -> None:
    """Add the endpoint if `codec_origin` is set. Raise `InvalidInput` if other machines can reach `http_address`."""
    if not settings.codec_origin:
        return
    address = settings.http_address
    host = "" if address == OFF else resolve_ip_address_and_port("http_address", address)[0]
    if not host or not ipaddress.ip_address(host).is_loopback:
        rule = "none, because http_address is no loopback address"
        raise InvalidInput(_SETTING, expected=rule, found=settings.codec_origin)
    parts = urlsplit(settings.codec_origin)
    pages.add(
        _PATH, _make_payload_decode_handler(codec, f"{parts.scheme}://{parts.netloc}"), methods=("OPTIONS", "POST")
    )


def _decrypt_payloads(codec: EncryptingCodec, body: bytes) -> str:
    if body.count(b"{") + body.count(b"[") > _MAX_OPENING_BRACKETS:  # checked before the parser builds objects
        raise InvalidInput("payloads", expected=f"at most {_MAX_PAYLOADS:,}", found="more")
    decoded = Payloads(payloads=codec.decrypt(json_format.Parse(body, Payloads()).payloads))
    return json_format.MessageToJson(decoded)


def _make_payload_decode_handler(codec: EncryptingCodec, origin: str) -> RequestHandler:
    lock = asyncio.Lock()

    async def page(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Origin") not in {None, origin}:
            raise web.HTTPForbidden(text="this origin may not ask: see the setting codec_origin\n")
        headers = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        if request.method == "OPTIONS":
            allowed = {"Methods": "POST", "Headers": _ALLOWED_HEADERS}
            headers |= {f"Access-Control-Allow-{name}": value for name, value in allowed.items()}
            return web.Response(status=204, headers=headers | {"Access-Control-Max-Age": _PREFLIGHT_MAX_AGE_S})
        body = await request.read()
        try:
            async with lock:
                decoded = await asyncio.to_thread(_decrypt_payloads, codec, body)
        except (json_format.ParseError, InvalidInput) as error:
            raise web.HTTPBadRequest(text=f"{error}\n", headers=headers) from None
        except (ValueError, RecursionError):
            raise web.HTTPBadRequest(text="no payloads as JSON in UTF-8\n", headers=headers) from None
        return web.json_response(text=decoded, headers=headers)

    return page
