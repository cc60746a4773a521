"""Scores over HTTP: an ASGI application in front of a :class:`~splitvfl.run.online.LabelService`.

::

    POST /score      records in JSON, scores back
    GET  /           which columns a record has
    GET  /health     200 when all partners are there, else 503
    GET  /metrics    for Prometheus: how often, how long, how many; no id, and no value of any record
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from splitvfl.app.http_access import Access, headers_of
from splitvfl.app.http_metrics import HttpMetrics
from splitvfl.app.http_records import RECORDS, Asked, RequestMistake, RequestReader
from splitvfl.errors import ProtocolError, SplitVFLError
from splitvfl.exchange.online import Scored, Standing
from splitvfl.run.online import LabelService, Unavailable

MOST_BYTES: Final = 1 << 20
"""Bytes of a request's body, at most."""

_BODY_S: Final = 10.0
_JSON: Final = "application/json"


class ScoringApplication:
    """The application.

    Args:
        service: Who is asked.
        reader: Reads the bodies of requests.
        access: Who may ask.
        metrics: Where it counts.
        model: What is said of the model beside the scores.
        timeout_s: Seconds after which a request is told to come again, waiting included.
        most_bytes: Bytes of a body, at most.
    """

    def __init__(
        self,
        service: LabelService,
        reader: RequestReader,
        access: Access,
        metrics: HttpMetrics,
        *,
        model: Mapping[str, object],
        timeout_s: float = 15.0,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._service, self._reader, self._access, self._metrics = service, reader, access, metrics
        self._model, self._timeout_s, self._most_bytes = dict(model), timeout_s, most_bytes
        routes = [
            Route("/score", self._score, methods=["POST"]),
            Route("/", self._about, methods=["GET"]),
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._measured, methods=["GET"]),
        ]
        handlers: dict[Any, Any] = {HTTPException: _told}
        inside = Starlette(routes=routes, exception_handlers=handlers)
        inside.router.redirect_slashes = False  # a path with a slash too many is another path, and is told so
        self._inside: ASGIApp = inside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._inside(scope, receive, send)
            return
        headers = headers_of(scope)
        refusal = self._refusal(scope["path"], headers)
        # A stranger gets one answer for a connection: on one that is kept, requests without end would never let go.
        answer = send if self._access.knows_token(headers.get("authorization")) else _closing(send)
        await (self._inside if refusal is None else refusal)(scope, receive, answer)

    def _refusal(self, path: str, headers: Mapping[str, str]) -> Response | None:
        """Return what is answered to who may not ask, before anything of the body is read."""
        if not self._access.knows_host(headers.get("host")):
            names = ", ".join(sorted(self._access.names))
            return _error(421, f"Host: expected one of {names}, got a host that this service is not")
        if path != "/health" and not self._access.knows_token(headers.get("authorization")):
            return _error(
                401, "Authorization: expected Bearer and the token of this service", {"WWW-Authenticate": "Bearer"}
            )
        return None

    # --- what is asked

    async def _score(self, request: Request) -> Response:
        started = time.monotonic()
        try:
            response = await self._scored(request)
        except ClientDisconnect:
            response = _error(499, "the client has gone")
        self._metrics.request(response.status_code, time.monotonic() - started)
        return response

    async def _scored(self, request: Request) -> Response:
        try:
            self._check_type(headers_of(request.scope))
            # In a thread: a large body takes a while, and others are answered meanwhile.
            asked = await run_in_threadpool(self._reader.read, await self._body(request))
            self._metrics.columns(asked.counts)
            return self._answer(asked, await self._asked(asked))
        except RequestMistake as error:
            return _error(error.status, str(error), {"Connection": "close"} if error.status in (408, 413) else {})
        except Unavailable as error:
            missing = {"missing": list(error.missing)} if error.missing else {}
            return _error(503, str(error), {"Retry-After": str(error.retry_s)}, **missing)
        except ProtocolError as error:
            return _error(502, f"a partner sent what does not belong there: {error}")
        except SplitVFLError as error:  # what it says may quote data, and goes to whoever runs the service
            return _error(500, f"the service has ended: {type(error).__name__}")

    def _check_type(self, headers: Mapping[str, str]) -> None:
        # A page of another site can send no such request without being asked first whether it may; nobody says so.
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            raise RequestMistake(f"content-type: expected {_JSON}, got {json.dumps(kind[:80])}", status=415)
        if headers.get("content-encoding", "identity") != "identity":
            raise RequestMistake("content-encoding: expected none", status=415)
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > self._most_bytes:
            raise self._too_large()

    def _too_large(self) -> RequestMistake:
        return RequestMistake(f"expected a body of at most {self._most_bytes} bytes; send fewer records", status=413)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > self._most_bytes:
                        raise self._too_large()
        except TimeoutError:
            raise RequestMistake(f"expected all of the body within {_BODY_S:g} s", status=408) from None
        return bytes(body)

    async def _asked(self, asked: Asked) -> Scored | None:
        """Return what the partners say of the records that this party has; ``None`` if it has none of them."""
        if not asked.question.records.count:
            return None
        future = self._service.submit(asked.question)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._timeout_s)
        except TimeoutError:
            raise Unavailable(f"no answer within {self._timeout_s:g} s; there is too much to do") from None

    # --- what is answered

    def _answer(self, asked: Asked, scored: Scored | None) -> Response:
        standing = {} if scored is None else {name: one.tolist() for name, one in scored.standing.items()}
        refusing = [name for name, one in standing.items() if Standing.REFUSED in one]
        if refusing:
            text = f"{' and '.join(refusing)} answers for no more records at this time: its limit is reached"
            return _error(429, text, {"Retry-After": "60"}, limited=refusing)
        records = self._records(asked, standing, [] if scored is None else scored.scores.tolist())
        content = records[0] if asked.single else {"scores": records}
        return JSONResponse({**content, "model": self._model})

    def _records(
        self, asked: Asked, standing: Mapping[str, list[int]], scores: list[float | list[float]]
    ) -> list[dict[str, Any]]:
        left, places = iter(scores), iter(range(sum(asked.own)))
        found = []
        for place, (name, own, unknown) in enumerate(zip(asked.ids, asked.own, asked.unknown, strict=True)):
            here = next(places) if own else None
            limited = [
                other for other, one in standing.items() if here is not None and one[here] == Standing.SCORED_ENOUGH
            ]
            missing = [self._service.party.name] if here is None else []
            missing += [other for other, one in standing.items() if here is not None and one[here] == Standing.NOT_HELD]
            for other in missing:
                self._metrics.not_held(other)
            without = ({"not_held": missing} if missing else {}) | ({"scored_enough": limited} if limited else {})
            answer = without or _score_of(next(left), "" if asked.single else f"{RECORDS}[{place}]")
            found.append({"id": name, **answer, **({"unknown_categories": list(unknown)} if unknown else {})})
        self._metrics.scored(sum({"not_held", "scored_enough"}.isdisjoint(one) for one in found))
        self._metrics.saturated(sum(map(_is_saturated, found)))
        return found

    async def _about(self, request: Request) -> Response:
        form = {self._reader.id_key: "a text or a whole number", **self._reader.columns}
        return JSONResponse({"record": form, "partners": list(self._service.partners), "model": self._model})

    async def _health(self, request: Request) -> Response:
        missing = self._service.missing
        ready = not missing and self._service.failed is None
        content: dict[str, object] = {"ready": ready}
        if self._access.knows_token(headers_of(request.scope).get("authorization")):
            content["missing"] = list(missing)
        return JSONResponse(content, 200 if ready else 503, {} if ready else {"Retry-After": "2"})

    async def _measured(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=self._metrics.media_type)


def _closing(send: Send) -> Send:
    """Return what sends an answer after which the connection is closed."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return sending


def _score_of(score: float | list[float], where: str) -> dict[str, Any]:
    if not all(map(math.isfinite, score if isinstance(score, list) else [score])):
        raise RequestMistake(
            "expected values on which the model has a finite output, got one that is too large for it", where=where
        )
    return {"scores": score} if isinstance(score, list) else {"score": score}


def _is_saturated(answer: Mapping[str, Any]) -> bool:
    """Return whether a score is exactly 0 or 1, or one of several classes has exactly 1."""
    return answer.get("score") in (0.0, 1.0) or 1.0 in answer.get("scores", ())


def _error(status: int, text: str, headers: Mapping[str, str] | None = None, **more: object) -> Response:
    return JSONResponse({"error": text, **more}, status, dict(headers or {}))


async def _told(request: Request, error: HTTPException) -> Response:
    texts = {404: "there is GET /, POST /score, GET /health and GET /metrics", 405: "POST /score; all else is GET"}
    return _error(error.status_code, f"expected another path or method: {texts.get(error.status_code, error.detail)}")
