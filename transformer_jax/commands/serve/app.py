"""The server as an ASGI application, and how it is run."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import h11
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from transformer_jax.commands.serve import deepl, libretranslate, page
from transformer_jax.commands.serve.batcher import Batcher
from transformer_jax.commands.serve.engine import Engine
from transformer_jax.commands.serve.http import Context, Keys, Limits, Metrics, failure
from transformer_jax.commands.serve.service import Service
from transformer_jax.errors import UserError, as_user_error

_LOGGER = logging.getLogger(__name__)

#: Seconds in which a connection must have sent the head of its request, or after its answer the
#: rest of it.
HEAD_SECONDS = 15.0
#: Seconds after a signal in which requests in hand may finish.
FINISH_SECONDS = 60
#: Most open connections; further ones are answered with 503.
CONNECTIONS = 1000


def make_app(
    engines: Sequence[Engine],
    *,
    limits: Limits | None = None,
    keys: Sequence[str] = (),
    cors: Sequence[str] = (),
    queue: int = 2048,
    window: float = 0.05,
    whole_lines: bool = False,
    examples: Mapping[str, Sequence[str]] | None = None,
) -> Starlette:
    """The application; it compiles its models' programs as it starts.

    Args:
        engines: one for each direction.
        limits: of a request.
        keys: API keys, of which each request must name one; none: all may come.
        cors: origins whose pages may use the server; "*" for all.
        queue: sentences that may wait; requests are answered with 429 while as many do.
        window: see `Batcher`.
        whole_lines: see `Service`.
        examples: sentences that the page offers to everyone, by language.
    """
    metrics = Metrics()
    threads = min(engine.threads for engine in engines)
    batcher = Batcher(threads=threads, window=window, limit=queue, observe=metrics.batches.observe)
    service = Service(engines, batcher, whole_lines=whole_lines)
    context = Context(service, limits or Limits(), Keys(keys), metrics, examples or {})
    metrics.waiting.set_function(lambda: batcher.waiting)
    metrics.ready.set_function(lambda: service.ready)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with batcher:
            warming = asyncio.create_task(_warm_up(service))
            yield
            warming.cancel()

    async def metrics_page(request: Request) -> Response:
        context.check_header(request, "Bearer")
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse(failure(request, error.detail), error.status_code, error.headers)

    allowed: Any = {"allow_origins": cors, "allow_methods": ["GET", "POST"], "allow_headers": ["*"]}
    routes = [
        Route(path, context.endpoint(handler), methods=[method])
        for (method, path), handler in (libretranslate.ROUTES | deepl.ROUTES | page.ROUTES).items()
    ]
    return Starlette(
        routes=[*routes, Route("/metrics", metrics_page), *page.static_routes()],
        middleware=[Middleware(CORSMiddleware, **allowed)] if cors else [],
        exception_handlers={HTTPException: http_error},
        lifespan=lifespan,
    )


async def _warm_up(service: Service) -> None:
    began = time.perf_counter()
    try:
        count = await service.warm_up()
    except Exception:
        _LOGGER.exception("the models cannot be compiled")  # and /health will never say ok
    else:
        # Garbage collection stops all threads. The objects that exist now are never freed: exclude
        # them, so that a collection is short.
        gc.collect()
        gc.freeze()
        _LOGGER.info("ready: %d programs in %.1f s", count, time.perf_counter() - began)


class Protocol(H11Protocol):
    """Closes a connection from which only the client can send, and does not in `HEAD_SECONDS`."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._head_timer:
            self._head_timer.cancel()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE:
            if self._head_timer:
                self._head_timer.cancel()
            self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; port 0 takes a free one.

    Raises:
        UserError: the port is not one, or the address is in use or is not one of this machine.
    """
    if not 0 <= port <= 65_535:  # `create_server` would leave its socket open
        raise UserError(f"port={port}: must be from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with as_user_error(f"host={host}, port={port}:", OSError):
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)


def make_server(app: Starlette) -> uvicorn.Server:
    """The server of an application; `run` runs it, and so does its own `run` in any thread."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        log_config=None,
        log_level="error",  # malformed requests must not fill the log
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing asks for the address of a client
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=FINISH_SECONDS,
    )
    return uvicorn.Server(config)


def run(app: Starlette, sock: socket.socket) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes what is in hand."""
    # uvicorn raises the signal again once it has finished; that must not end the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    make_server(app).run(sockets=[sock])
