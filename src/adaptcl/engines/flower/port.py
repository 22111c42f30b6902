"""The server's port: Flower's fleet protocol over HTTPS, served in a thread of this process."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Coroutine

import uvicorn
from fastapi import FastAPI
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.error import http_error_translator
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router as fleet_router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

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
        self._socket = _bind(host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                _app(states, doorkeeper, keys),
                ssl_certfile=keys.certificate,
                ssl_keyfile=keys.key,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                timeout_keep_alive=75,
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        self._loop = asyncio.new_event_loop()
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
            self._loop.close()

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


def _app(states: LinkStateFactory, doorkeeper: Doorkeeper, keys: ServerKeys) -> FastAPI:
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(Gate, known=frozenset(keys.workers)),
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


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol left to the system, asyncio would not see that it is TCP, and not switch
    # off the delay that costs every small answer 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
