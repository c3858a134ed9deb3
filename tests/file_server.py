"""An HTTP server on the loopback interface, in a thread of the test process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = Callable[[BaseHTTPRequestHandler], None]


class FileServer(ThreadingHTTPServer):
    """Serves `files` by path. A value that is a function answers the request itself."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes | Answer] = {}
        self.requests: list[str] = []  # paths
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, *_: object) -> None:
        """A client that goes away is expected."""


class Handler(BaseHTTPRequestHandler):
    server: FileServer

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        self.server.headers.append(dict(self.headers))
        content = self.server.files.get(self.path)
        if callable(content):
            content(self)
        elif content is None:
            self.send_error(404)
        else:
            send(self, content)

    def log_message(self, *_: object) -> None:
        pass


def send(handler: BaseHTTPRequestHandler, content: bytes, *, declared: int | None = None) -> None:
    """Send the content; `declared` is the size in the header."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content) if declared is None else declared))
    handler.end_headers()
    handler.wfile.write(content)


def redirect(address: str) -> Answer:
    """An answer that redirects to this address."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", address)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


@contextmanager
def file_server() -> Iterator[FileServer]:
    server = FileServer()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
