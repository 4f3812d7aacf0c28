"""A wire between workers and a server that can be cut without anybody being told: nothing closes, nothing arrives."""

import socket
import threading
from contextlib import suppress


class CuttableProxy:
    """Passes connections on to a server; while it is cut it holds back all that is said, as a network does."""

    def __init__(self, target: str, *, host: str = "127.0.0.1") -> None:
        """Listen on a free port of `host`; `target` is the server's `host:port`."""
        name, _, port = target.partition(":")
        self._target = (name, int(port))
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self.held: list[bytes] = []  # what was said since the last cut, and has not arrived
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes, in either direction."""
        self.held = []
        self._open.clear()

    def mend(self) -> None:
        """What was held back arrives, and all that follows."""
        self._open.set()

    def close(self) -> None:
        """End it and all that goes through it."""
        for connection in [self._listener, *self._sockets]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._open.set()

    def _accept_connections(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(inner)
            threading.Thread(target=self._relay_connection, args=(inner,), daemon=True).start()

    def _relay_connection(self, inner: socket.socket) -> None:
        if not self._open.is_set():  # a network that is cut carries no new connection either
            with suppress(OSError):
                self.held.append(inner.recv(65_536, socket.MSG_PEEK))
            self._open.wait()
        try:
            outer = socket.create_connection(self._target)
        except OSError:
            inner.close()
            return
        self._sockets.append(outer)
        threading.Thread(target=self._forward_data, args=(inner, outer), daemon=True).start()
        self._forward_data(outer, inner)

    def _forward_data(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self._open.is_set():
                    self.held.append(data)
                self._open.wait()
                sink.sendall(data)
        self._open.wait()  # that one side has closed is not heard either
        for connection in (source, sink):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
