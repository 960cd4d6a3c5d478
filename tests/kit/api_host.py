"""The other half of kit.api: a process that forks one api child, as a supervisor does, and writes the shared memory.

It reads one JSON command a line from stdin, answers each with one line, and ends with its child at the end of stdin.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from deadsure.httpapi import tokens
from deadsure.httpapi.serve import serve
from deadsure.httpapi.settings import ApiSettings
from deadsure.runtime import db, dsn, events
from deadsure.runtime.blackbox import Header, Phase, PoolMemory, Seat, Seating

FOR_EVER = 2**62


def settings(given: dict[str, Any]) -> ApiSettings:
    database = db.Settings(dsn.parse(given.pop("dsn")))
    held = tokens.parse(given.pop("tokens")) if "tokens" in given else ()
    return ApiSettings(database, app_dir=Path(given.pop("app_dir", ".")), tokens=held, **given)


def fork(sock: socket.socket, memory: PoolMemory, wake: int, given: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        os.close(0)
        events.subscribe(lambda event, fields: print(event, fields, file=sys.stderr, flush=True))
        code = 70
        try:
            code = serve(sock, memory, wake, settings(given))
        finally:
            sys.stderr.flush()
            os._exit(code)
    sock.close()
    return pid


def obey(memory: PoolMemory, wake: int, pid: int, command: dict[str, Any]) -> Any:
    match command.pop("do"):
        case "header":
            sender = command.pop("announce_as", None)
            memory.write_header(Header(**command, announce_as=UUID(sender) if sender else None))
        case "seat":
            seat = memory.seats[command["seat"]]
            seat.write_seat(Seat(Seating.TAKEN, command["pid"], 0, command["exits"], command["last_exit"]))
        case "box":
            task = command["task"] and UUID(command["task"])
            seat = memory.seats[command["seat"]]
            seat.write_box(Phase[command["phase"]], UUID(int=1), command["pid"], task, command["fence"])
        case "cancel_requested":
            return memory.seats[command["seat"]].cancel_requested(UUID(command["task"]), command["fence"])
        case "woken":
            try:
                return int.from_bytes(os.read(wake, 8), "little")
            except BlockingIOError:
                return 0
        case "stop":
            os.kill(pid, signal.SIGTERM)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None


def commands() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    given = json.loads(sys.argv[1])
    memory = PoolMemory(2)
    memory.write_header(Header(recovered=True, ever_ready=True, draining=False, trusted_until=FOR_EVER))
    wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    port = sock.getsockname()[1]
    pid = fork(sock, memory, wake, given)
    print(json.dumps({"port": port, "pid": pid}), flush=True)
    stopped = False
    try:
        for command in commands():
            stopped = stopped or command["do"] == "stop"
            print(json.dumps(obey(memory, wake, pid, command)), flush=True)
    finally:
        if not stopped:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
