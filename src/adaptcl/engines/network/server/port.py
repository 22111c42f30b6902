"""The server's port: Flower's fleet protocol over HTTPS, in a thread of this process."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Coroutine
from typing import Any

import uvicorn
from fastapi import FastAPI
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.error import http_error_translator
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from adaptcl.engines.network.keys import ServerKeys
from adaptcl.engines.network.server.admission import CallFilter, KeyFilter
from adaptcl.engines.network.server.connections import IDLE_S, ListeningSocket, room_for
from adaptcl.errors import AdaptCLError, SettingError


class Port(threading.Thread):
    """The web server, in a thread with its event loop."""

    def __init__(
        self, host: str, port: int, keys: ServerKeys, states: LinkStateFactory, calls: CallFilter
    ) -> None:
        super().__init__(name="fleet", daemon=True)
        self._log = calls.log
        self._socket = self._bind(host, port, room_for(len(keys.workers)))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                _app(states, calls, keys, self._socket),
                ssl_certfile=keys.certificate,
                ssl_keyfile=keys.key,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,  # a client could forge its address in them
                timeout_keep_alive=int(IDLE_S),
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_ignore_lack_of_files)
        self._error: BaseException | None = None

    def start(self) -> None:
        """Serve; returns when the port answers."""
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        super().start()
        while not self._uvicorn.started:
            self.check()
            time.sleep(0.01)

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._uvicorn.serve([self._socket]))
        except BaseException as error:
            self._error = error
        finally:
            self._end_handshakes()
            self._loop.close()

    def _end_handshakes(self) -> None:
        """End connections that never got beyond TLS."""
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=1))

    def call(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the port's event loop, soon."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def check(self) -> None:
        """Raise what ended the port, if anything did."""
        if self._error is not None or (self.ident is not None and not self.is_alive()):
            raise AdaptCLError(f"The server's port has closed: {self._error}.")

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self.join(timeout=5)
        self._socket.close()

    def _bind(self, host: str, port: int, room: int) -> ListeningSocket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = ListeningSocket(family, room, self._tell_full)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise SettingError(
                f"The server cannot listen at {host}:{port} ({error.strerror}); choose another "
                "address with --listen, or with --address if you resume a run."
            ) from None
        return listening

    def _tell_full(self) -> None:
        self._log.note("So many connections are open that those without a key are being closed.")


def _ignore_lack_of_files(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The log already says that there were no files left for a connection."""
    if "out of system resource" not in context["message"]:
        loop.default_exception_handler(context)


def _app(
    states: LinkStateFactory, calls: CallFilter, keys: ServerKeys, listening: ListeningSocket
) -> FastAPI:
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(KeyFilter, keys=keys, log=calls.log, socket=listening),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=calls),
        ],
    )
    app.state.linkstate_factory = states
    app.state.enable_supernode_auth = True
    app.include_router(fleet_router)
    return app
