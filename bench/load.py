"""A client that submits over so many connections for so long, in a process of its own; prints how many were accepted.

python -m deadsure.bench.load PORT CONNECTIONS SECONDS KIND
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time


def main(port: int, connections: int, seconds: float, kind: str) -> int:
    """Accepted submits of all connections together."""
    body = json.dumps({"kind": kind, "payload": {"text": "a small payload"}}).encode()
    head = f"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    until = time.monotonic() + seconds
    accepted = [0] * connections

    def work(number: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = client.makefile("rb")
            while time.monotonic() < until:
                client.sendall(request)
                status = answers.readline()
                length = 0
                while (line := answers.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                answers.read(length)
                if b" 202 " not in status:
                    raise ConnectionError(f"the server answered {status!r}")
                accepted[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(accepted)


if __name__ == "__main__":
    print(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
