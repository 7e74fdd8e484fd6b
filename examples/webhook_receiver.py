"""Receive events of Presage, verify their signatures, and print a line for each new one.

python examples/webhook_receiver.py SECRET_FILE PORT
"""

import hashlib
import hmac
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

secret = Path(sys.argv[1]).read_bytes().strip()
known: set[str] = set()  # a repeated request has the same id


class Receiver(BaseHTTPRequestHandler):
    """Handler of one request."""

    timeout = 5

    def do_POST(self) -> None:
        """Verify and print an event."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        expected = f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"
        given = self.headers.get("X-Presage-Signature", "")
        if not hmac.compare_digest(expected.encode(), given.encode()):
            self.send_error(401)
            return
        event = json.loads(body)
        if event["id"] not in known:
            known.add(event["id"])
            print(event["time"], event["type"], event["subject"], event["data"], flush=True)
        self.send_response(204)
        self.end_headers()


HTTPServer(("127.0.0.1", int(sys.argv[2])), Receiver).serve_forever()
