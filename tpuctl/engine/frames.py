"""What the processes of a slice say to each other in every step: frames over TCP, arrays as they lie in memory.

A frame is two lengths, a JSON header and the bytes of its arrays. No pickle: what a peer sends is data. Whoever
connects says first which host it is, and a word that only the gang knows; until then nothing of it is believed.
No jax.
"""

from __future__ import annotations

import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

_LENGTHS = struct.Struct(">IQ")
_MAX_HEADER_BYTES = 1 << 20
_MAX_BODY_BYTES = 1 << 31
_HELLO_SECONDS = 5.0
_POLL_SECONDS = 0.5
_ARRAY = "\0array"  # no name of ours


class PeerGoneError(ConnectionError):
    """The other end is gone, or speaks another language."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One message. ``number`` says which one of its ``kind``; ``values`` are JSON's kinds, and numpy arrays."""

    kind: str
    number: int
    values: dict[str, Any]


class Channel:
    """A connection to one peer. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """For selectors: readable when there is a frame, or the peer is gone."""
        return self._socket.fileno()

    def send(self, frame: Frame) -> None:
        """Send a frame; see ``send_packed``."""
        self.send_packed(pack(frame))

    def send_packed(self, packed: bytes) -> None:
        """Send what ``pack`` made, which may go to several peers.

        Raises:
            PeerGoneError: It can't be sent.
        """
        try:
            with self._sending:
                self._socket.sendall(packed)
        except OSError as error:
            raise PeerGoneError(f"the connection broke: {error}") from error

    def receive(self) -> Frame:
        """The next frame; waits for it.

        Raises:
            PeerGoneError: There is none any more.
        """
        header_bytes, body_bytes = _LENGTHS.unpack(self._read(_LENGTHS.size))
        if header_bytes > _MAX_HEADER_BYTES or body_bytes > _MAX_BODY_BYTES:
            raise PeerGoneError(f"a frame of {header_bytes} + {body_bytes} bytes: this is no peer of ours")
        return unpack(self._read(header_bytes), self._read(body_bytes))

    def close(self) -> None:
        """End the connection and let go of it: for the thread that receives."""
        self.end()
        self._socket.close()

    def end(self) -> None:
        """End the connection, for any thread: whoever waits on it, here or there, wakes up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def wait_at_most(self, seconds: float | None) -> None:
        """Bound every later call; None for no bound."""
        self._socket.settimeout(seconds)

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            try:
                got = self._socket.recv_into(view[at:])
            except OSError as error:
                raise PeerGoneError(f"the connection broke: {error}") from error
            if not got:
                raise PeerGoneError("the connection ended")
            at += got
        return data


class Listener:
    """Where the hosts of a gang connect to."""

    def __init__(self, host: str, *, word: str) -> None:
        """Listen on a free port. ``word`` is what each host has to know."""
        self._word = word
        self._socket = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.settimeout(_POLL_SECONDS)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def accept(self, count: int, *, go_on: Callable[[], bool]) -> list[Channel]:
        """The channels of hosts 0 to ``count`` - 1, once all have connected.

        Raises:
            TimeoutError: ``go_on``, asked again and again, said no; the message names who is missing.
        """
        found: dict[int, Channel] = {}
        while len(found) < count:
            if not go_on():
                for channel in found.values():
                    channel.close()
                missing = ", ".join(str(number) for number in range(count) if number not in found)
                raise TimeoutError(f"joined {len(found)} of {count} hosts: missing hosts {missing}")
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            channel = Channel(connection)
            number = self._number(channel, count)
            if number is None or number in found:
                channel.close()
            else:
                found[number] = channel
        return [found[number] for number in range(count)]

    def close(self) -> None:
        """Take no more connections."""
        self._socket.close()

    def _number(self, channel: Channel, count: int) -> int | None:
        """Which host is calling, if it is one of ours."""
        channel.wait_at_most(_HELLO_SECONDS)
        try:
            hello = channel.receive()
        except PeerGoneError:
            return None
        channel.wait_at_most(None)
        word = str(hello.values.get("word", ""))
        known = hello.kind == "hello" and hmac.compare_digest(word.encode(), self._word.encode())
        return hello.number if known and 0 <= hello.number < count else None


def connect(address: tuple[str, int], *, number: int, word: str, timeout_seconds: float) -> Channel:
    """Join a gang as host ``number``.

    Raises:
        PeerGoneError: Nobody listens there.
    """
    end = time.monotonic() + timeout_seconds
    while True:
        try:
            connection = socket.create_connection(address, timeout=timeout_seconds)
            break
        except OSError as error:
            if time.monotonic() > end:
                raise PeerGoneError(f"can't reach {address[0]}:{address[1]}: {error}") from error
            time.sleep(_POLL_SECONDS)
    connection.settimeout(None)
    channel = Channel(connection)
    channel.send(Frame(kind="hello", number=number, values={"word": word}))
    return channel


def pack(frame: Frame) -> bytes:
    """A frame as bytes."""
    arrays: list[np.ndarray] = []
    values = _without_arrays(frame.values, arrays)
    shapes = [[array.dtype.str, *array.shape] for array in arrays]
    header = json.dumps([frame.kind, frame.number, values, shapes], separators=(",", ":")).encode()
    body = sum(array.nbytes for array in arrays)
    return b"".join([_LENGTHS.pack(len(header), body), header, *[array.tobytes() for array in arrays]])


def unpack(header: bytes | bytearray, body: bytes | bytearray) -> Frame:
    """The frame of a header and a body. Its arrays lie in ``body``.

    Raises:
        PeerGoneError: These are none.
    """
    try:
        kind, number, values, shapes = json.loads(header)
        arrays, at = [], 0
        for name, *shape in shapes:
            array: np.ndarray = np.ndarray(shape, np.dtype(name), body, at)
            arrays.append(array)
            at += array.nbytes
        return Frame(kind=str(kind), number=int(number), values=_with_arrays(values, arrays))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise PeerGoneError(f"a frame that can't be read: {error}") from error


def _without_arrays(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(np.ascontiguousarray(value).reshape(value.shape))
        return {_ARRAY: len(arrays) - 1}
    return value


def _with_arrays(value: Any, arrays: list[np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        return arrays[value[_ARRAY]]
    return {key: _with_arrays(item, arrays) for key, item in value.items()}
