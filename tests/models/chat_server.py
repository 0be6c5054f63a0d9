"""A server on this machine that speaks the chat-completions protocol, and breaks it when told to."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ChatServer(ThreadingHTTPServer):
    """Answers a prompt with its last word but one; faults are taken from ``faults`` first, one a request."""

    daemon_threads = True

    def __init__(self, key="secret-key"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.key, self.faults, self.requests, self.times = key, [], [], []
        self.before_answer = lambda text: None
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.times.append(time.monotonic())
            self.server.requests.append((self.path, self.headers, body))
            fault = self.server.faults.pop(0) if self.server.faults else None
        text = body["messages"][0]["content"]
        if fault == "cut":
            self.close_connection = True
            self.connection.close()
            return
        if self.headers["Authorization"] != f"Bearer {self.server.key}":
            said = f"wrong key {self.headers['Authorization']}"
            return self.send(401, {"error": {"message": said}})
        if isinstance(fault, tuple):
            status, headers = fault
            return self.send(status, {"error": {"message": "not now"}}, headers)
        if fault == "not json":
            return self.send(200, "<html>oops", {"Content-Type": "application/json"})
        if fault == "a page":
            return self.send(200, "<html>oops", {"Content-Type": "text/html"})
        self.server.before_answer(text)
        message = {"role": "assistant", "content": None if fault == "no text" else text.split()[-2]}
        choices = [] if fault == "no choices" else [{"index": 0, "message": message, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
        whole = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}
        return self.send(200, {} if fault == "empty" else whole | {"usage": usage})

    def send(self, status, body, headers=None):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving():
    server = ChatServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
