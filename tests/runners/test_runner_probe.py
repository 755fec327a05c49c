"""Reading the load generator's exports, checking lengths, and what makes a measurement doubtful."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from runners.contracts import ProbeCommand, ProbeLoad
from runners.engines.tokenizer import write_word_tokenizer
from runners.engines.vllm import VLLM_METRICS
from runners.errors import CommandRefusedError, ProbeError
from runners.probe import aiperf
from runners.probe.lengths import check_lengths
from runners.probe.power import PowerSampler
from runners.probe.readiness import generate_one, list_model
from runners.probe.scrape import Counters, read_counters
from runners.probing import _share, cache_state, check_load, prompt_seed

DATA = Path(__file__).parent.parent / "data" / "aiperf"
LOAD = ProbeLoad(input_tokens=64, output_tokens=16, concurrency=4, requests=40)


@pytest.fixture
def summary() -> dict[str, Any]:
    data = aiperf.read_summary(DATA)
    assert data is not None
    return data


def test_a_summary_becomes_metrics(summary: dict[str, Any]) -> None:
    """B17: the definitions that docs/runners.md publishes; TPOT leaves the first token out."""
    metrics = aiperf.parse(summary, LOAD, DATA)
    assert (metrics.requests, metrics.completed, metrics.failed) == (40, 40, 0)
    assert metrics.generator == "aiperf 0.13.0"
    assert metrics.ttft_ms["mean"] == pytest.approx(125.501, abs=1e-3)
    assert set(metrics.ttft_ms) == {"mean", "p50", "p90", "p95", "p99"}
    assert metrics.tpot_ms["p50"] == pytest.approx(17.917, abs=1e-3)
    assert metrics.achieved_concurrency == pytest.approx(3.897, abs=1e-3)
    assert (metrics.mean_input_tokens, metrics.mean_output_tokens) == (64.0, 16.0)
    assert metrics.itl_kind == "tokens"
    assert metrics.prefix_hit is None
    # TPOT = (E2E - TTFT) / (n - 1) holds in the mean when all outputs are equally long.
    expected = (metrics.e2e_ms["mean"] - metrics.ttft_ms["mean"]) / 15
    assert metrics.tpot_ms["mean"] == pytest.approx(expected, rel=1e-6)
    assert metrics.output_tok_per_s * metrics.duration_s == pytest.approx(40 * 16, rel=5e-3)


def test_more_than_five_percent_errors_is_no_measurement(summary: dict[str, Any]) -> None:
    """B10: a run with more than 5 % errors stops."""
    bad = {
        **summary,
        "request_count": {"avg": 37.0},
        "error_request_count": {"avg": 3.0},
        "error_summary": [{"error_details": {"type": "HTTPError", "message": "503"}, "count": 3}],
    }
    with pytest.raises(ProbeError, match="3 of 40 requests failed") as caught:
        aiperf.parse(bad, LOAD, DATA)
    assert "HTTPError: 503" in caught.value.reason
    few = {**summary, "request_count": {"avg": 39.0}, "error_request_count": {"avg": 1.0}}
    assert aiperf.parse(few, LOAD, DATA).failed == 1


def test_no_answer_at_all_is_a_stated_failure(summary: dict[str, Any]) -> None:
    with pytest.raises(ProbeError, match="No request was answered"):
        aiperf.parse({**summary, "request_count": {"avg": 0.0}}, LOAD, DATA)


def test_goodput_counts_what_met_every_limit_and_is_zero_when_nothing_did(summary: dict[str, Any]) -> None:
    """B10, B18: all late is a goodput of 0, not NaN; each limit has its own share."""
    load = replace(LOAD, slo_ms={"ttft": 200.0, "tpot": 25.0})
    good = {**summary, "goodput": {"avg": 7.5}, "good_request_count": {"avg": 30.0}}
    metrics = aiperf.parse(good, load, DATA)
    assert (metrics.goodput_per_s, metrics.good_share) == (7.5, 0.75)
    assert set(metrics.slo_shares) == {"ttft", "tpot"}
    assert all(0 < share <= 1 for share in metrics.slo_shares.values())
    late = aiperf.parse(summary, replace(load, slo_ms={"ttft": 0.001}), DATA)
    assert late.slo_shares == {"ttft": 0.0}
    assert (late.goodput_per_s, late.good_share) == (0.0, 0.0)
    assert aiperf.parse(summary, LOAD, DATA).goodput_per_s is None


def test_an_embedding_has_no_ttft(summary: dict[str, Any]) -> None:
    """B13: what does not stream has no TTFT, rather than one equal to its E2E."""
    absent = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "output_sequence_length")
    one_pass = {key: value for key, value in summary.items() if key not in absent}
    load = replace(LOAD, endpoint="embeddings")
    metrics = aiperf.parse(one_pass, load, DATA)
    assert (metrics.ttft_ms, metrics.tpot_ms) == ({}, {})
    assert metrics.total_tok_per_s == pytest.approx(64.0 * metrics.req_per_s)
    assert not any("Outputs" in text for text in aiperf.doubts(metrics, one_pass, load, DATA))
    argv = aiperf.command(load, base_url="", served_name="", tokenizer="", folder=DATA)
    assert "--streaming" not in argv
    assert "--osl" not in argv


def test_without_a_first_token_there_is_no_ttft(summary: dict[str, Any]) -> None:
    without = {key: value for key, value in summary.items() if key != "time_to_first_token"}
    with pytest.raises(ProbeError, match="no streamed token"):
        aiperf.parse(without, LOAD, DATA)


def test_chunks_of_several_tokens_are_told_apart(summary: dict[str, Any], tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / aiperf.RECORDS).read_text().splitlines()]
    for row in rows:
        row["metrics"]["inter_chunk_latency"]["value"] = row["metrics"]["inter_chunk_latency"]["value"][:7]
    (tmp_path / aiperf.RECORDS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert aiperf.parse(summary, LOAD, tmp_path).itl_kind == "chunks"


def test_doubts_are_said_in_words(summary: dict[str, Any]) -> None:
    """B7, B8: concurrency that the client did not keep, and sends that came late."""
    metrics = aiperf.parse(summary, LOAD, DATA)
    assert aiperf.doubts(metrics, summary, LOAD, DATA) == [
        "The client sent up to 12 ms (p99) late; latencies do not contain that wait."
    ]
    wrong = replace(metrics, mean_input_tokens=300.0, mean_output_tokens=9.0, completed=20)
    slow = {**summary, "effective_concurrency": {"avg": 2.0, "p50": 2.0}}
    text = " ".join(aiperf.doubts(wrong, slow, replace(LOAD, requests=10_000, concurrency=4000), DATA))
    for words in ("300.0 tokens on average", "Outputs had 9.0", "Only 20 of", "kept 2.0 requests", "five requests"):
        assert words in text


def test_records_in_the_middle_of_a_line_wait(tmp_path: Path) -> None:
    shutil.copy(DATA / aiperf.RECORDS, tmp_path)
    with (tmp_path / aiperf.RECORDS).open("a") as stream:
        stream.write('{"error": {"code": 500}, "metadata": {}}\n{"half')
    assert aiperf.count_records(tmp_path) == aiperf.Counts(answered=10, failed=1)
    assert aiperf.count_records(tmp_path / "nowhere") == aiperf.Counts(0, 0)


def test_the_measured_phase_excludes_the_warm_up() -> None:
    window = aiperf.profiling_window(DATA)
    assert window is not None
    assert 4.0 < window[1] - window[0] < 4.5


def test_the_command_line_makes_fresh_prompts_and_warms_up_enough(tmp_path: Path) -> None:
    """B5, B15: as many warm-ups as run at once; prompts of random tokens, none used twice, no padding."""
    load = replace(LOAD, concurrency=32, requests=200, warmup_requests=2, seed=7)
    argv = aiperf.command(load, base_url="http://h:1", served_name="m", tokenizer="/t", folder=tmp_path)
    options = dict(itertools.pairwise(argv))
    assert options["--warmup-request-count"] == "32"
    assert options["--num-dataset-entries"] == "232"
    assert options["--dataset-sampling-strategy"] == "sequential"
    assert options["--prompt-corpus"] == "random"
    assert (options["--concurrency"], options["--request-count"], options["--random-seed"]) == ("32", "200", "7")
    assert options["--failed-request-threshold"] == "0.05"
    assert "--request-rate" not in options
    assert "--goodput" not in options
    strict = aiperf.command(
        replace(load, slo_ms={"tpot": 25.0, "ttft": 500.0}), base_url="", served_name="", tokenizer="", folder=tmp_path
    )
    assert strict[strict.index("--goodput") + 1] == "inter_token_latency:25 time_to_first_token:500"
    open_loop = aiperf.command(
        replace(load, rate_per_s=2.5), base_url="", served_name="", tokenizer="", folder=tmp_path
    )
    options = dict(itertools.pairwise(open_loop))
    assert (options["--request-rate"], options["--arrival-pattern"]) == ("2.5", "poisson")
    assert "--concurrency" not in options


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests", 0),
        ("concurrency", 0),
        ("input_tokens", -1),
        ("timeout_s", 0.0),
        ("endpoint", "images"),
        ("slo_ms", {"itl": 3.0}),
        ("mix", ((64, 16, 60.0),)),
        ("mix", ((640, 16, 100.0),)),
        ("shared_tokens", 64),
    ],
)
def test_absurd_loads_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(CommandRefusedError, match=field):
        check_load(replace(LOAD, **{field: value}))


def test_the_rate_of_completions_leaves_the_ramp_out(tmp_path: Path, summary: dict[str, Any]) -> None:
    """B6: (n - 1) / (last end - first end): 11 requests that end once a second for ten seconds make 1 a second."""
    rows = [
        {"metadata": {"benchmark_phase": "profiling", "request_start_ns": i * 10**9, "request_end_ns": (i + 7) * 10**9}}
        for i in range(11)
    ]
    rows.append({"metadata": {"benchmark_phase": "warmup", "request_start_ns": 0, "request_end_ns": 10**9}})
    (tmp_path / aiperf.RECORDS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = aiperf.parse(summary, LOAD, tmp_path)
    assert metrics.completions_per_s == pytest.approx(1.0)
    slow = " ".join(aiperf.doubts(metrics, summary, replace(LOAD, rate_per_s=40.0, requests=400), tmp_path))
    assert "sent 1 requests a second, not 40" in slow


def test_lateness_of_sends_is_kept_beside_the_latencies(summary: dict[str, Any]) -> None:
    """B8: a late send is not part of any latency, so how late it was is reported."""
    lag = aiperf.parse(summary, LOAD, DATA).send_lag_ms
    assert lag["p99"] == pytest.approx(summary["credit_to_start_latency"]["p99"])
    assert lag["mean"] > 0


def test_reasoning_stops_one_clock_and_the_answer_another(summary: dict[str, Any]) -> None:
    """B11: 1,175 ms to the first token of reasoning, 183,581 ms to the first of the answer: both are kept."""
    reasons = {
        **summary,
        "time_to_first_token": {**summary["time_to_first_token"], "p50": 1_175.0},
        "time_to_first_output_token": {"avg": 183_581.0, "p50": 183_581.0},
    }
    metrics = aiperf.parse(reasons, LOAD, DATA)
    assert metrics.ttft_ms["p50"] == 1_175.0
    assert metrics.first_answer_ms == {"mean": 183_581.0, "p50": 183_581.0}  # minutes, uncut (B14)
    assert aiperf.parse(summary, LOAD, DATA).first_answer_ms == {}


def test_a_mixture_of_lengths_and_a_shared_prefix_reach_the_generator(tmp_path: Path) -> None:
    """B19: pairs of lengths with their share, and how much of a prompt others share."""
    load = ProbeLoad(800, 160, 4, 40, mix=((500, 100, 40.0), (1000, 200, 60.0)), shared_tokens=256, shared_prefixes=3)
    check_load(load)
    options = dict(itertools.pairwise(aiperf.command(load, base_url="", served_name="", tokenizer="", folder=tmp_path)))
    assert options["--seq-dist"] == "244,100:40;744,200:60"
    assert (options["--prefix-prompt-length"], options["--num-prefix-prompts"]) == ("256", "3")
    assert "--isl" not in options
    one = dict(itertools.pairwise(aiperf.command(replace(load, mix=()), base_url="", served_name="", tokenizer="",
                                                 folder=tmp_path)))  # fmt: skip
    assert one["--isl"] == "544"


def test_a_run_is_warm_only_by_what_the_engine_counted() -> None:
    """B20: of an H200's probes one found 98 % of its prompts cached, one 14 %, the others none; labels follow that."""
    lines = (DATA.parent / "h200_worker" / "observations.jsonl").read_text("utf-8").splitlines()
    said = {row["job_id"]: row["metrics"] for row in map(json.loads, lines) if row.get("metrics")}
    states = {name: cache_state(metrics["prefix_hit"]) for name, metrics in said.items()}
    assert (states["probe-q8b-r8"], states["probe-q8b-c64"], states["probe-q8b-c8"]) == ("warm", "mixed", "cold")
    assert {state for name, state in states.items() if name.startswith("probe-moe")} == {"cold"}
    assert cache_state(None) == ""
    assert cache_state(1136 / 1024) == "warm"


def test_acceptance_of_drafts_is_recorded_with_the_run() -> None:
    """B16: acceptance depends on the text, so a comparison needs to know it."""
    text = "\n".join(
        f"# TYPE {name} counter\n{name}_total {value}"
        for name, value in (("vllm:spec_decode_num_draft_tokens", 300), ("vllm:spec_decode_num_accepted_tokens", 210))
    )
    counters = read_counters(text + "\n", VLLM_METRICS)
    assert (counters.drafted, counters.accepted) == (300.0, 210.0)


def test_hits_are_those_of_the_run_not_of_the_engines_life() -> None:
    """B2: the counters are cumulative; hits are reported for each run."""
    before = Counters(prefix_queries=1_000_000.0, prefix_hits=900_000.0)
    after = Counters(prefix_queries=1_001_000.0, prefix_hits=900_100.0)
    assert _share(before, after) == pytest.approx(0.1)
    assert _share(Counters(), Counters()) is None
    assert _share(before, before) is None


def test_prompts_that_wait_are_not_counted_at_every_look() -> None:
    """An engine short of KV blocks looked requests up 2.6 times each on an H200: 1,579,392 queries, 608,256 tokens."""
    before = Counters(prompt_cached=0.0, prompt_tokens=857_345.0, prefix_queries=5_029_377.0, prefix_hits=115_104.0)
    after = Counters(
        prompt_cached=100_000.0, prompt_tokens=1_465_601.0, prefix_queries=6_608_769.0, prefix_hits=491_424.0
    )
    assert _share(before, after) == pytest.approx(100_000 / 608_256)


def test_no_two_probes_send_the_same_prompts() -> None:
    commands = [
        ProbeCommand("j", attempt, "d", probe, "", "m", "", "vllm", LOAD) for probe in "ab" for attempt in (1, 2)
    ]
    seeds = {prompt_seed(command) for command in commands}
    assert len(seeds) == len(commands)
    assert prompt_seed(commands[0]) == prompt_seed(replace(commands[0], job_id="another"))


class _Counting(BaseHTTPRequestHandler):
    factor = 1
    served = "m"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = {"count": len(body["prompt"].split()) * self.factor, "choices": []}
        self._answer(text if self.path == "/tokenize" else {}, 200 if self.path == "/tokenize" else 500)

    def do_GET(self) -> None:
        self._answer({"data": [{"id": self.served, "max_model_len": 99}]}, 200)

    def _answer(self, data: object, status: int) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Counting]]]:
    handler = type("Handler", (_Counting,), {})
    http = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", handler
    http.shutdown()
    http.server_close()


def test_equal_tokenizers_pass_and_different_ones_stop_the_probe(
    server: tuple[str, type[_Counting]], tmp_path: Path
) -> None:
    """B3: the engine's own count is compared before the run."""
    url, handler = server
    folder = str(write_word_tokenizer(tmp_path, 512))
    assert check_lengths(url, "m", folder, "/tokenize", seed=1) is None
    handler.factor = 5  # 7,140 tokens here, 35,921 there
    with pytest.raises(ProbeError, match="same tokenizer"):
        check_lengths(url, "m", folder, "/tokenize", seed=1)


def test_lengths_that_cannot_be_checked_are_said(server: tuple[str, type[_Counting]], tmp_path: Path) -> None:
    url, _ = server
    folder = str(write_word_tokenizer(tmp_path, 512))
    assert "no route" in (check_lengths(url, "m", folder, None, 0) or "")
    assert "no local folder" in (check_lengths(url, "m", "Qwen/Qwen3-8B", "/tokenize", 0) or "")
    assert "did not count" in (check_lengths("http://127.0.0.1:9", "m", folder, "/tokenize", 0) or "")


def test_readiness_needs_the_name_and_one_token(server: tuple[str, type[_Counting]]) -> None:
    url, _ = server
    assert list_model(url, "m").max_model_len == 99
    assert "lists m, not other" in list_model(url, "other").detail
    assert "answers 500" in generate_one(url, "m", 5.0).detail
    assert not list_model("http://127.0.0.1:9", "m").ready


def test_without_a_gpu_there_is_no_power(tmp_path: Path) -> None:
    with PowerSampler(()) as none, PowerSampler((0,)) as absent:
        pass
    assert none.mean_w((0.0, 1e12)) is None
    assert absent.mean_w((0.0, 1e12)) is None
