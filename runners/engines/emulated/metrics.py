"""Metrics of an emulated engine under the real engines' names, plus ``tonnage_emulated`` 1."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from runners.engines.emulated.scheduler import Scheduler, Sequence
from runners.engines.emulated.spec import Limits

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160, 640)


class EngineMetrics:
    """Prometheus metrics of one engine; ``acts_as`` vllm | tensorrt_llm decides the names."""

    def __init__(self, acts_as: str, model_name: str, limits: Limits) -> None:
        self.registry = CollectorRegistry()
        vllm = acts_as == "vllm"
        prefix = "vllm:" if vllm else "trtllm_"
        labels = {"model_name": model_name, "engine": "0"} if vllm else {"model_name": model_name}
        names = tuple(labels)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(prefix + name, text, names, registry=self.registry).labels(**labels)

        def counter(name: str, text: str) -> Counter:
            return Counter(prefix + name, text, names, registry=self.registry).labels(**labels)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(prefix + name, text, names, buckets=_SECONDS, registry=self.registry).labels(**labels)

        Gauge("tonnage_emulated", "1: these figures come from a model, not from hardware", registry=self.registry).set(
            1
        )
        if vllm:
            cache = {"block_size": str(limits.block_tokens), "num_gpu_blocks": str(limits.kv_blocks), "engine": "0"}
            Info("vllm:cache_config", "Information of the CacheConfig", registry=self.registry).info(cache)
        self._running = gauge("num_requests_running", "Requests in model execution batches")
        self._waiting = gauge("num_requests_waiting", "Requests waiting to be processed")
        self._usage = gauge("kv_cache_usage_perc" if vllm else "kv_cache_utilization", "KV-cache usage, 0..1")
        self._prompt = counter("prompt_tokens", "Prefill tokens processed")
        self._output = counter("generation_tokens", "Generation tokens processed")
        self._queries = counter("prefix_cache_queries", "Prefix cache queries in tokens") if vllm else None
        self._hits = counter("prefix_cache_hits" if vllm else "prompt_cached_tokens", "Cached prompt tokens")
        self._preemptions = counter("num_preemptions", "Preemptions by the engine") if vllm else None
        success = Counter(
            f"{prefix}request_success", "Requests finished", (*names, "finished_reason"), registry=self.registry
        )
        self._success = success.labels(**labels, finished_reason="length")
        self._ttft = histogram("time_to_first_token_seconds", "Time to first token")
        self._tpot = histogram(
            "inter_token_latency_seconds" if vllm else "time_per_output_token_seconds", "Time per output token"
        )
        self._e2e = histogram("e2e_request_latency_seconds", "End to end request latency")
        self._queue = histogram("request_queue_time_seconds", "Time spent waiting")
        self._seen = {"preemptions": 0, "queries": 0, "hits": 0}
        self._received: dict[Sequence, float] = {}
        self._last: dict[Sequence, float] = {}

    def entered(self, sequence: Sequence, at: float) -> None:
        """A request reached the scheduler; latencies count from its arrival at the server."""
        self._received[sequence] = sequence.arrived
        self._last[sequence] = at

    def token(self, sequence: Sequence, at: float, last: bool) -> None:
        """A token of ``sequence`` went out."""
        received = self._received.get(sequence, at)
        if sequence.first_token is None:
            sequence.first_token = at
            self._ttft.observe(at - received)
            self._prompt.inc(sequence.prompt_tokens)
            self._queue.observe(max((sequence.first_scheduled or at) - received, 0.0))
        else:
            self._tpot.observe(at - self._last[sequence])
        self._last[sequence] = at
        self._output.inc()
        if last:
            self._success.inc()
            self._e2e.observe(at - received)
            self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """A request ended or was given up."""
        self._received.pop(sequence, None)
        self._last.pop(sequence, None)

    def state(self, running: int, waiting: int, kv_used: float) -> None:
        """Gauges of this moment."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._usage.set(kv_used)

    def counters(self, scheduler: Scheduler) -> None:
        """Bring the counters up to the scheduler's."""
        now = {
            "preemptions": scheduler.preemptions,
            "queries": scheduler.prefix_queries,
            "hits": scheduler.prefix_hits,
        }
        for name, metric in (("preemptions", self._preemptions), ("queries", self._queries), ("hits", self._hits)):
            if metric is not None:
                metric.inc(now[name] - self._seen[name])
        self._seen = now

    def text(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
