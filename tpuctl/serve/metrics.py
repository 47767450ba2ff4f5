"""``/metrics`` in Prometheus' text format, under vLLM's names where the meaning is the same."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tpuctl.serve.bridge import StatsLike

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
_REQUEST_SECONDS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_RECENT = 100
_TOKENS = tuple(2**power for power in range(18))


class Metrics:
    """What one server counts."""

    def __init__(self, stats: Callable[[], StatsLike] | None, *, model_name: str) -> None:
        """``stats`` are an engine's figures; an encoder has none."""
        self._registry = CollectorRegistry()
        if stats is not None:
            self._registry.register(_EngineCollector(stats, model_name))
        self._first_tokens: deque[float] = deque(maxlen=_RECENT)
        self._labels = {"model_name": model_name}
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From request to first token.", _FIRST_TOKEN_SECONDS
        )
        self.between_tokens = self._histogram("inter_token_latency_seconds", "Between tokens.", _TOKEN_SECONDS)
        self.latency = self._histogram("e2e_request_latency_seconds", "From request to last token.", _REQUEST_SECONDS)
        self.prompt_tokens = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.output_tokens = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._success = Counter(
            "vllm:request_success", "Samples ended.", ["model_name", "finished_reason"], registry=self._registry
        )
        self._answers = Counter(
            "tpuctl:http_answers", "Answers by path and status.", ["path", "status"], registry=self._registry
        )

    def took_to_first_token(self, seconds: float) -> None:
        """Count a sample's first token."""
        self._first_tokens.append(seconds)
        self.first_token.observe(seconds)

    def recent_first_token(self) -> float | None:
        """Median seconds to the first token, of the last samples."""
        return statistics.median(self._first_tokens) if self._first_tokens else None

    def ended(self, reason: str) -> None:
        """Count a sample that ended."""
        self._success.labels(finished_reason=reason, **self._labels).inc()

    def answered(self, path: str, *, status: int) -> None:
        """Count an answer."""
        self._answers.labels(path=path, status=str(status)).inc()

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(f"vllm:{name}", doc, ["model_name"], buckets=buckets, registry=self._registry)
        return made.labels(**self._labels)


class Timing:
    """When the tokens of one request came."""

    def __init__(self, metrics: Metrics, *, samples: int) -> None:
        self._metrics = metrics
        self._start = time.perf_counter()
        self._last: list[float | None] = [None] * samples

    def tokens(self, sample: int, *, count: int) -> None:
        """Some tokens have come to a sample."""
        if not count:
            return
        now, last = time.perf_counter(), self._last[sample]
        if last is None:
            self._metrics.took_to_first_token(now - self._start)
        else:
            for _ in range(count):
                self._metrics.between_tokens.observe((now - last) / count)
        self._last[sample] = now

    def finished(self, reason: str, *, prompt_tokens: int, output_tokens: int) -> None:
        """A sample has ended."""
        self._metrics.latency.observe(time.perf_counter() - self._start)
        self._metrics.prompt_tokens.observe(prompt_tokens)
        self._metrics.output_tokens.observe(output_tokens)
        self._metrics.ended(reason)


def joined(texts: Iterable[tuple[Mapping[str, str], bytes]]) -> bytes:
    """The texts of several servers as one, each sample with the labels of its server, where it has not these itself."""
    families: dict[str, Metric] = {}
    for labels, text in texts:
        for found in text_string_to_metric_families(text.decode()):
            family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
            family.samples += [sample._replace(labels={**labels, **sample.labels}) for sample in found.samples]
    registry = CollectorRegistry()
    registry.register(_Collected(list(families.values())))
    return generate_latest(registry)


class _Collected(Collector):
    """Metrics as they were read."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


class _EngineCollector(Collector):
    """The engine's own figures, read when they are asked for."""

    def __init__(self, stats: Callable[[], StatsLike], model_name: str) -> None:
        self._stats = stats
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        used = stats.num_pages - stats.free_pages - stats.cached_pages
        yield self._gauge("num_requests_running", "Sequences that hold pages.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences that wait for pages.", stats.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the pages in use, 0 to 1.", used / max(1, stats.num_pages))
        yield self._counter("prompt_tokens", "Prompt tokens taken in, cached ones included.", stats.prompt_tokens)
        yield self._counter("generation_tokens", "Tokens made.", stats.output_tokens)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up.", stats.prompt_tokens)
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the cache.", stats.cached_tokens)
        yield self._counter("spec_decode_num_draft_tokens", "Drafts held against tokens drawn.", stats.draft_tokens)
        yield self._counter("spec_decode_num_accepted_tokens", "Of these, right.", stats.accepted_tokens)
        yield self._counter("num_preemptions", "Sequences that lost their pages for a time.", stats.preemptions)

    def _gauge(self, name: str, doc: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", doc, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family

    def _counter(self, name: str, doc: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", doc, labels=["model_name"])
        family.add_metric([self._model_name], value)
        return family
