#!/usr/bin/env python3
"""A reader of web sockets with the standard library alone: prints each text message as a line.

    ws_read.py HOST:PORT [--token TOKEN | --query TOKEN] [--origin ORIGIN] [--ping]

With --ping it says "pong" on standard error once it is answered.
Exits with the status of the answer less 300 (401 is 101) when it is not let in, and with 3 when
something is not as RFC 6455 wants it.
"""
import base64
import hashlib
import os
import socket
import struct
import sys


def main(address, *options):
    options = list(options)
    take = lambda name: options[options.index(name) + 1] if name in options else None
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=60)
    key = base64.b64encode(os.urandom(16)).decode()
    path = f"/?token={take('--query')}" if take("--query") else "/"
    lines = [f"GET {path} HTTP/1.1", f"Host: {address}", "Upgrade: websocket", "Connection: Upgrade",
             f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
    if take("--token"):
        lines.append(f"Authorization: Bearer {take('--token')}")
    if take("--origin"):
        lines.append(f"Origin: {take('--origin')}")
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    stream = connection.makefile("rb")
    status = int(stream.readline().split()[1])
    headers = {}
    while (line := stream.readline().strip()):
        name, value = line.decode().split(":", 1)
        headers[name.strip().lower()] = value.strip()
    if status != 101:
        return status - 300
    accept = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
    if headers["sec-websocket-accept"] != base64.b64encode(accept).decode():
        return 3

    def send(opcode, payload):
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        connection.sendall(bytes([0x80 | opcode, 0x80 | len(payload)]) + mask + masked)

    pongs = 0
    if "--ping" in options:
        send(9, b"are you there?")
    while True:
        head = stream.read(2)
        if len(head) < 2:
            return 3
        length = head[1]
        if length == 126:
            (length,) = struct.unpack(">H", stream.read(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", stream.read(8))
        payload = stream.read(length)
        if head[0] == 0x81:
            if b"\n" in payload:
                return 3
            sys.stdout.write(payload.decode() + "\n")
        elif head[0] == 0x8A:
            pongs += payload == b"are you there?"
            print("pong", file=sys.stderr, flush=True)
        elif head[0] == 0x88:
            send(8, payload)
            return 0 if pongs == options.count("--ping") else 3
        else:
            return 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
