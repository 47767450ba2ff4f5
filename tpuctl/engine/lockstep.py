"""A step on every host of a slice: one process leads, the hosts follow, each with its own runner over the same mesh.

The leader schedules and sends what a step takes to all hosts; these launch the same compiled step, whose collectives
bring them together. Host 0 sends back what was made. Commands go out in one order and are obeyed in that order, so all
hosts run the same programs one after another; answers come in that order, too. The leader needs no chips and no jax.
"""

from __future__ import annotations

import dataclasses
import selectors
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from tpuctl.engine.batch import Bucket, CompiledShape, StepBatch, StepResult, StepRunner
from tpuctl.engine.frames import Channel, Frame, PeerGoneError, pack
from tpuctl.errors import HostLostError


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlainLogits:
    """What the plain forward pass says over a text, keys and values rounded as the engine's pages keep them.

    Attributes:
        logits: Of each token ``[tokens, vocabulary]``.
        moved: By how much that rounding moves each token's logits ``[tokens]``: the standard deviation over the
            vocabulary, 0 where nothing is rounded.
    """

    logits: np.ndarray
    moved: np.ndarray


Forward = Callable[[np.ndarray, int], PlainLogits]
"""Token ids ``[tokens]`` and the index of an adapter to what the plain forward pass says."""

Tell = Callable[..., None]

# The engine fetches step k after it has launched k + 1, and may have k explained only then.
_KEPT_STEPS = 3


class Lockstep:
    """A ``StepRunner`` that has the hosts of a slice run the steps. ``lost`` is set to the reason once one is gone."""

    def __init__(self, channels: Sequence[Channel], *, step_seconds: float, start_seconds: float) -> None:
        """Lead the hosts at the other ends of the channels, in the order of their numbers.

        Args:
            channels: Of host 0, which answers, to the last.
            step_seconds: How long an answer may take; a host that hangs is as good as gone.
            start_seconds: How long compiling a shape, or getting ready, may take.
        """
        self.lost: Future[str] = Future()
        self._channels = tuple(channels)
        self._step_seconds = step_seconds
        self._start_seconds = start_seconds
        self._answers: dict[tuple[str, int], Frame] = {}
        self._sent = 0
        self._selector = selectors.DefaultSelector()
        for number, channel in enumerate(self._channels):
            self._selector.register(channel, selectors.EVENT_READ, number)

    def wait_ready(self, tell: Tell) -> None:
        """Wait until each host has its weights; ``tell`` takes the phases that host 0 goes through meanwhile."""
        ready: set[int] = set()
        while len(ready) < len(self._channels):
            number, frame = self._next(self._start_seconds)
            if frame.kind == "ready":
                ready.add(number)
            elif number == 0:
                tell(**frame.values)

    def warm_up(self) -> Iterator[CompiledShape]:
        """See ``StepRunner``."""
        asked = self._send("warm_up", {})
        while True:
            _, frame = self._next(self._start_seconds)
            if (frame.kind, frame.number) == ("warm", asked):
                return
            values = frame.values
            yield CompiledShape(bucket=Bucket(**values["bucket"]), seconds=values["seconds"])

    def launch(self, batch: StepBatch) -> int:
        """See ``StepRunner``; a step is known by its number."""
        return self._send("launch", _batch_values(batch))

    def fetch(self, launched: int, *, explained: bool) -> StepResult:
        """See ``StepRunner``. What was asked to be explained is known from the batch."""
        return StepResult(**self._answer("made", launched))

    def explain(self, launched: int, *, places: np.ndarray, targets: np.ndarray) -> StepResult:
        """See ``StepRunner``."""
        asked = self._send("explain", {"step": launched, "places": places, "targets": targets})
        return StepResult(**self._answer("explained", asked))

    def forward(self, tokens: np.ndarray, adapter: int) -> PlainLogits:
        """The plain forward pass over all hosts; see ``Forward``."""
        asked = self._send("forward", {"tokens": tokens, "adapter": adapter})
        return PlainLogits(**self._answer("logits", asked, seconds=self._start_seconds))

    def lose(self, reason: str) -> None:
        """Give up: for any thread that knows that a host is gone. Whoever waits for an answer learns of it."""
        with suppress(InvalidStateError):
            self.lost.set_result(reason)
        for channel in self._channels:
            channel.end()

    def close(self) -> None:
        """Let the hosts end."""
        for channel in self._channels:
            with suppress(PeerGoneError):
                channel.send(Frame(kind="stop", number=0, values={}))
            channel.close()
        self._selector.close()

    def _send(self, kind: str, values: dict[str, Any]) -> int:
        self._sent += 1
        packed = pack(Frame(kind=kind, number=self._sent, values=values))
        for number, channel in enumerate(self._channels):
            try:
                channel.send_packed(packed)
            except PeerGoneError as error:
                raise self._lost(f"host {number} is gone: {error}") from error
        return self._sent

    def _answer(self, kind: str, number: int, *, seconds: float | None = None) -> dict[str, Any]:
        while (kind, number) not in self._answers:
            _, frame = self._next(seconds or self._step_seconds)
            self._answers[frame.kind, frame.number] = frame
        return self._answers.pop((kind, number)).values

    def _next(self, seconds: float) -> tuple[int, Frame]:
        """The next frame, and of which host. Every host is listened to: one that ends is seen at once."""
        if self.lost.done():
            raise HostLostError(self.lost.result())
        ready = self._selector.select(timeout=seconds)
        if not ready:
            raise self._lost(f"host 0 has not answered for {seconds:g} s")
        number: int = max(key.data for key, _ in ready)  # those that say nothing unless they fail come first
        try:
            frame = self._channels[number].receive()
        except PeerGoneError as error:
            raise self._lost(f"host {number} is gone: {error}") from error
        if frame.kind == "failed":
            raise self._lost(f"host {number} failed: {frame.values['reason']}")
        return number, frame

    def _lost(self, reason: str) -> HostLostError:
        """The error for what is lost; the first reason known is the one."""
        self.lose(reason)
        return HostLostError(self.lost.result())


class Follower:
    """One host: does what the leader says, until told to stop."""

    def __init__(self, channel: Channel, *, speaks: bool) -> None:
        """``speaks`` of host 0, which answers."""
        self._channel = channel
        self._speaks = speaks
        self._launched: dict[int, Any] = {}
        self._replies: SimpleQueue[tuple[str, int, Callable[[], dict[str, Any]]] | None] = SimpleQueue()

    def tell(self, **values: Any) -> None:
        """Let the leader know what this host is at."""
        if self._speaks:
            self._channel.send(Frame(kind="phase", number=0, values=values))

    def run(self, runner: StepRunner, forward: Forward) -> None:
        """Say that this host is ready, then obey.

        Raises:
            PeerGoneError: The leader is gone.
            Exception: Whatever a step raised; the leader has been told.
        """
        answering = threading.Thread(target=self._reply, name="answers", daemon=True)
        answering.start()
        self._channel.send(Frame(kind="ready", number=0, values={}))
        try:
            while (frame := self._channel.receive()).kind != "stop":
                self._obey(frame, runner, forward)
        except PeerGoneError:
            raise
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._replies.put(None)

    def _obey(self, frame: Frame, runner: StepRunner, forward: Forward) -> None:
        values = frame.values
        if frame.kind == "launch":
            self._launch(frame.number, _batch(values), runner)
        elif frame.kind == "explain":
            # Programs that don't wait for each other must not meet on the wire: hosts might take them in other orders.
            runner.fetch(self._launched[max(self._launched)], explained=False)
            told = runner.explain(self._launched[values["step"]], places=values["places"], targets=values["targets"])
            self._answer("explained", frame.number, lambda: _result_values(told))
        elif frame.kind == "forward":
            plain = forward(values["tokens"], values["adapter"])
            self._answer("logits", frame.number, lambda: {"logits": plain.logits, "moved": plain.moved})
        elif frame.kind == "warm_up":
            for shape in runner.warm_up():
                said = {"bucket": dataclasses.asdict(shape.bucket), "seconds": shape.seconds}
                self._answer("compiled", frame.number, lambda said=said: said)  # type: ignore[misc]
            self._answer("warm", frame.number, dict)
        else:
            raise ValueError(f"unknown command {frame.kind!r}: another version of tpuctl?")

    def _launch(self, number: int, batch: StepBatch, runner: StepRunner) -> None:
        launched = self._launched[number] = runner.launch(batch)
        for old in [step for step in self._launched if step <= number - _KEPT_STEPS]:
            del self._launched[old]
        explained = bool(batch.sampling["explained"])
        self._answer("made", number, lambda: _result_values(runner.fetch(launched, explained=explained)))

    def _answer(self, kind: str, number: int, make: Callable[[], dict[str, Any]]) -> None:
        if self._speaks:
            self._replies.put((kind, number, make))

    def _reply(self) -> None:
        """Answers in the order of the commands, from a thread: what waits for a device holds up no command."""
        while (reply := self._replies.get()) is not None:
            kind, number, make = reply
            try:
                self._channel.send(Frame(kind=kind, number=number, values=make()))
            except PeerGoneError:
                return
            except Exception as error:  # noqa: BLE001 — the leader must not wait for an answer that does not come
                self._fail(error)
                self._channel.end()
                return

    def _fail(self, error: Exception) -> None:
        with suppress(PeerGoneError):
            self._channel.send(Frame(kind="failed", number=0, values={"reason": f"{type(error).__name__}: {error}"}))


def _batch_values(batch: StepBatch) -> dict[str, Any]:
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return values | {"bucket": dataclasses.asdict(batch.bucket)}


def _batch(values: dict[str, Any]) -> StepBatch:
    counts = {int(slot): counts for slot, counts in values["counts"].items()}
    return StepBatch(**{**values, "bucket": Bucket(**values["bucket"]), "counts": counts})


def _result_values(result: StepResult) -> dict[str, Any]:
    return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
