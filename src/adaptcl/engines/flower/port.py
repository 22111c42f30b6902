"""The server's port: Flower's fleet protocol over HTTPS, served in a thread of this process."""

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

from adaptcl.engines.flower.connections import IDLE_S, Entrance, room_for
from adaptcl.engines.flower.doorkeeper import Doorkeeper, Gate
from adaptcl.engines.flower.keys import ServerKeys
from adaptcl.errors import AdaptCLError, SettingError


class Port(threading.Thread):
    """The web server, in a thread with an event loop of its own."""

    def __init__(
        self,
        host: str,
        port: int,
        keys: ServerKeys,
        states: LinkStateFactory,
        doorkeeper: Doorkeeper,
    ) -> None:
        super().__init__(name="fleet", daemon=True)
        self._log = doorkeeper.log
        self._socket = self._bind(host, port, room_for(len(keys.workers)))
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                _app(states, doorkeeper, keys, self._socket),
                ssl_certfile=keys.certificate,
                ssl_keyfile=keys.key,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,  # They would say where a request comes from.
                timeout_keep_alive=int(IDLE_S),
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_without_scarcity)
        self._error: BaseException | None = None

    def start(self) -> None:
        """Serve, and come back when the port answers."""
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        super().start()
        while not self._uvicorn.started:
            self.check()
            time.sleep(0.01)

    def run(self) -> None:
        """What the thread does."""
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._uvicorn.serve([self._socket]))
        except BaseException as error:
            self._error = error
        finally:
            self._end_handshakes()
            self._loop.close()

    def _end_handshakes(self) -> None:
        """Of connections that never came to anything."""
        for task in (left := asyncio.all_tasks(self._loop)):
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=1))

    def call(self, coroutine: Coroutine[None, None, None]) -> None:
        """Have a coroutine run in the server's loop, soon."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def check(self) -> None:
        """Raise what ended the server, if anything did."""
        if self._error is not None or (self.ident is not None and not self.is_alive()):
            raise AdaptCLError(f"The server's port has closed: {self._error}.")

    def stop(self) -> None:
        """Close the port and all connections."""
        self._uvicorn.should_exit = True
        self.join(timeout=5)
        self._socket.close()

    def _bind(self, host: str, port: int, room: int) -> Entrance:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = Entrance(family, room, self._tell_full)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(128)
        except OSError as error:
            listening.close()
            raise SettingError(
                f"The server cannot listen at {host}:{port} ({error.strerror}); choose another "
                "address with --listen."
            ) from None
        return listening

    def _tell_full(self) -> None:
        self._log.note("So many connections are open that those without a key are being closed.")


def _without_scarcity(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio tells of a connection for which there was no file is in the log already."""
    if "out of system resource" not in context["message"]:
        loop.default_exception_handler(context)


def _app(
    states: LinkStateFactory, doorkeeper: Doorkeeper, keys: ServerKeys, entrance: Entrance
) -> FastAPI:
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(Gate, keys=keys, log=doorkeeper.log, entrance=entrance),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
            Middleware(BaseHTTPMiddleware, dispatch=doorkeeper),
        ],
    )
    app.state.linkstate_factory = states
    app.state.enable_supernode_auth = True
    app.include_router(fleet_router)
    return app
