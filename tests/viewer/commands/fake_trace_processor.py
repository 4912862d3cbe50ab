"""Stands in for trace_processor_shell: speaks its HTTP, and gives the answers that ``answers.json`` beside it has.

Beside it, ``asked.json`` will hold what it was started with and asked, and ``trace`` what it was told to read.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

FOLDER = Path(__file__).parent
PROTOS = ProtoFactory(PlatformDelegate())
NULL, INTEGER, REAL, TEXT, BLOB = range(1, 6)


def result(columns: list[str], rows: list[list[Any]]) -> bytes:
    """Lists in place of values are bytes."""
    message = PROTOS.QueryResult()
    message.column_names.extend(columns)
    batch = message.batch.add()
    texts = []
    for value in (value for row in rows for value in row):
        if isinstance(value, str):
            batch.cells.append(TEXT)
            texts.append(value + "\0")
        elif isinstance(value, list):
            batch.cells.append(BLOB)
            batch.blob_cells.append(bytes(value))
        elif isinstance(value, int):
            batch.cells.append(INTEGER)
            batch.varint_cells.append(value)
        elif isinstance(value, float):
            batch.cells.append(REAL)
            batch.float64_cells.append(value)
        else:
            batch.cells.append(NULL)
    batch.string_cells = "".join(texts)
    batch.is_last_batch = True
    return bytes(message.SerializeToString())


def refusal(text: str) -> bytes:
    message = PROTOS.QueryResult()
    message.error = text
    return bytes(message.SerializeToString())


class Shell(BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 - one process, one list

    def do_GET(self) -> None:
        self._reply(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/parse":
            with (FOLDER / "trace").open("ab") as file:
                file.write(body)
            self._reply(b"")
            return
        arguments = PROTOS.QueryArgs()
        arguments.ParseFromString(body)
        self.asked.append(arguments.sql_query)
        (FOLDER / "asked.json").write_text(json.dumps([sys.argv[1:], self.asked]))
        answers = json.loads((FOLDER / "answers.json").read_text())
        answer = answers.get(arguments.sql_query, [[], []])
        self._reply(refusal(answer) if isinstance(answer, str) else result(*answer))

    def _reply(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


if __name__ == "__main__":
    HTTPServer(("localhost", int(sys.argv[sys.argv.index("--http-port") + 1])), Shell).serve_forever()
