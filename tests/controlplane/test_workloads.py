"""Workloads, uploaded models and traces."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from controlplane.core.models import User
from controlplane.core.tables import TableError
from controlplane.planning.mapping import plan_load, plan_workload
from controlplane.workloads import services
from controlplane.workloads.models import LlmModel, SloTarget, Trace, Workload
from controlplane.workloads.tracefile import parse_trace
from planner.errors import UnknownModelError
from planner.serving.types import Lengths

pytestmark = pytest.mark.django_db

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_hidden_layers": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def upload(actor: User, config: Any, model_id: str = "me/tiny", **extra: Any) -> LlmModel:
    content = config if isinstance(config, bytes) else json.dumps(config).encode()
    return services.upload_model(actor=actor, model_id=model_id, config=content, **extra)


def test_upload_and_use_a_model(planner: User, workload: Workload) -> None:
    """G3: metadata that a hub does not give comes by upload; without it a name is refused, never passed."""
    workload.model_ref = "gated/unknown-model"
    with pytest.raises(ValidationError, match="gated/unknown-model"):
        services.save_workload(actor=planner, workload=workload)
    row = upload(planner, TINY)
    assert (row.architecture, row.parameters) == ("LlamaForCausalLM", services.model_spec("me/tiny").total_params)
    assert services.model_choices()[0] == "me/tiny"
    workload.model_ref = "me/tiny"
    services.save_workload(actor=planner, workload=workload)
    with pytest.raises(ValidationError, match="used by Chat"):
        services.delete_model(actor=planner, model=row)
    bigger = upload(planner, {**TINY, "num_hidden_layers": 16})
    assert bigger.pk == row.pk
    assert services.model_spec("me/tiny").layers == 16, "the same id again replaces it"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"", "JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "one JSON object"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"[" * 5000 + b"]" * 5000, "nested deeper"),
        (b" " * (5 * 2**20), "larger than"),
        ({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "is missing"),
        ({**TINY, "architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}, "NoSuch"),
        ({**TINY, "hidden_size": -512}, "hidden_size"),
        ({**TINY, "num_hidden_layers": 10**12}, "num_hidden_layers"),
        ({**TINY, "vocab_size": "many"}, "vocab_size"),
    ],
)
def test_hostile_configurations(planner: User, config: Any, words: str) -> None:
    with pytest.raises(ValidationError) as error:
        upload(planner, config)
    assert words in " ".join(error.value.message_dict["config"])
    assert not LlmModel.objects.exists()


@pytest.mark.parametrize("model_id", ["../../etc/passwd", "/etc/passwd", "a/b/c", "", "x y", "-x"])
def test_model_ids_are_no_paths(planner: User, model_id: str, workload: Workload) -> None:
    with pytest.raises(ValidationError, match="organisation/name"):
        upload(planner, TINY, model_id)
    with pytest.raises(UnknownModelError):
        services.model_spec(model_id)
    workload.model_ref = model_id
    with pytest.raises(ValidationError):
        services.save_workload(actor=planner, workload=workload)


def test_a_catalogue_id_is_not_overwritten(planner: User) -> None:
    with pytest.raises(ValidationError, match="in the catalogue"):
        upload(planner, TINY, "Qwen/Qwen3-8B")


def test_roles(viewer: User, planner: User, workload: Workload) -> None:
    for act in (
        lambda: upload(viewer, TINY),
        lambda: services.save_workload(actor=viewer, workload=workload),
        lambda: services.delete_workload(actor=viewer, workload=workload),
        lambda: services.upload_trace(actor=viewer, name="t", filename="t.csv", content=b""),
    ):
        with pytest.raises(PermissionDenied, match="planner"):
            act()


def test_objectives_are_replaced(planner: User, workload: Workload) -> None:
    wanted = [SloTarget(metric="ttft", stat="p90", limit_ms=500), SloTarget(metric="tpot", stat="mean", limit_ms=40)]
    services.save_workload(actor=planner, workload=workload, slo=wanted)
    found = {(item.metric, item.stat, item.limit_ms) for item in workload.slo_targets.all()}
    assert found == {("ttft", "p90", 500.0), ("tpot", "mean", 40.0)}
    services.save_workload(actor=planner, workload=workload, slo=[])
    assert not workload.slo_targets.exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rate_per_s": 0}, "rate_per_s"),
        ({"rate_per_s": float("inf")}, "rate_per_s"),
        ({"rate_per_s": 1e308}, "rate_per_s"),
        ({"arrival_cv": 1e308}, "arrival_cv"),
        ({"load_kind": "closed", "concurrency": 10**12}, "concurrency"),
        ({"max_model_len": 2**40}, "max_model_len"),
        ({"hour_profile": [1e308] * 168}, "hour_profile"),
        ({"load_kind": "closed"}, "concurrency"),
        ({"load_kind": "offline"}, "requests"),
        ({"arrival": "trace"}, "arrival"),
        ({"input_tokens": {"kind": "trace"}}, "input_tokens"),
        ({"input_tokens": {"kind": "fixed", "value": 0}}, "input_tokens"),
        ({"input_tokens": {"kind": "fixed", "value": "many"}}, "input_tokens"),
        ({"output_tokens": {"kind": "uniform", "low": 9, "high": 3}}, "output_tokens"),
        ({"output_tokens": {"kind": "normal", "mean": 9, "sd": -1}}, "output_tokens"),
        ({"output_tokens": {"kind": "samples", "samples": []}}, "output_tokens"),
        ({"output_tokens": {"kind": "bimodal"}}, "output_tokens"),
        ({"output_tokens": [1, 2]}, "output_tokens"),
        ({"allowed_engines": []}, "allowed_engines"),
        ({"allowed_precisions": ["fp5"]}, "allowed_precisions"),
        ({"prefix_hit": 1.0}, "prefix_hit"),
        ({"mean_load_share": 0}, "mean_load_share"),
        ({"model_ref": "no/such-model"}, "model_ref"),
    ],
)
def test_rules_name_the_field(planner: User, workload: Workload, change: dict, field: str) -> None:
    for name, value in change.items():
        setattr(workload, name, value)
    with pytest.raises(ValidationError) as error:
        services.save_workload(actor=planner, workload=workload)
    assert field in error.value.message_dict


@pytest.mark.parametrize(
    "values",
    [{"load_kind": "closed"}, {"rate_per_s": 0}, {"prefix_hit": 1.5}, {"kind": "poetry"}, {"arrival": "trace"}],
)
def test_constraints_hold_below_the_services(workload: Workload, values: dict) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Workload.objects.filter(pk=workload.pk).update(**values)


CSV = b"timestamp_s,input_tokens,output_tokens\n5,100,10\n1,200,20\n2.5,300,30\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", CSV),
        ("t.csv.gz", gzip.compress(CSV)),
        ("t.csv", b"\xef\xbb\xbf" + CSV),
        (
            "t.jsonl",
            b'{"time_s": 5, "prompt_tokens": 100, "completion_tokens": 10}\n\n'
            b'{"time_s": 1, "prompt_tokens": 200, "completion_tokens": 20}\n'
            b'{"time_s": 2.5, "prompt_tokens": 300, "completion_tokens": 30}\n',
        ),
    ],
)
def test_traces_are_read_and_sorted(planner: User, name: str, content: bytes) -> None:
    row = services.upload_trace(actor=planner, name="T", filename=name, content=content)
    times, tokens_in, tokens_out = Trace.objects.get(pk=row.pk).arrays()
    assert times.tolist() == [0.0, 1.5, 4.0]
    assert (tokens_in.tolist(), tokens_out.tolist()) == ([200, 300, 100], [20, 30, 10])
    assert (row.rows, row.duration_s, row.mean_rate_per_s, row.mean_input_tokens) == (3, 4.0, 0.5, 200.0)


@pytest.mark.parametrize(
    ("content", "row", "field", "words"),
    [
        (b"", 0, "", "empty"),
        (b"timestamp_s,input_tokens\n1,2\n", 1, "output_tokens", "is missing"),
        (b"timestamp_ms,input_tokens,output_tokens\n1,2,3\n", 1, "timestamp_ms", "seconds"),
        (b"timestamp,input_tokens,output_tokens\n1,2,3\n", 1, "timestamp", "unit"),
        (b"time,input_tokens,output_tokens,prefix_block_ids\n1,2,3,4\n", 1, "time", "timestamp_s"),
        (b"timestamp_s,input_tokens,output_tokens\n1,-2,3\n", 2, "input_tokens", "at least 1"),
        (b"timestamp_s,input_tokens,output_tokens\n1,2,3\n2,nan,3\n", 3, "input_tokens", "finite"),
        (b"timestamp_s,input_tokens,output_tokens\n-1,2,3\n", 2, "timestamp_s", "negative"),
        (b"timestamp_s,input_tokens,output_tokens\n1,2.5,3\n", 2, "input_tokens", "whole"),
        (b"timestamp_s,input_tokens,output_tokens\n1,2k,3\n", 2, "input_tokens", "without a unit"),
        (b"timestamp_s,input_tokens,output_tokens\n1,,3\n", 2, "input_tokens", "missing"),
        (b"timestamp_s,input_tokens,output_tokens\n1,2\n", 2, "output_tokens", "missing"),
        (b"timestamp_s,input_tokens,output_tokens\n1,2,99999999999\n", 2, "output_tokens", "characters or bytes"),
        (b"timestamp_s,input_tokens,output_tokens\n0,2,3\n99999999999,2,3\n", 0, "timestamp_s", "milliseconds"),
        (b"timestamp_s,input_tokens,output_tokens\n7,2,3\n7,2,3\n", 0, "timestamp_s", "same time"),
        (b"timestamp_s,input_tokens,output_tokens\n", 0, "", "no requests"),
        (b"\xff\xfe1\x00", 1, "", "UTF-8"),
        (b"a\x00b", 0, "", "NUL"),
        (gzip.compress(CSV)[:-12], 0, "", "cut short"),
        (b"\x1f\x8bnonsense", 0, "", "gzip"),
    ],
)
def test_hostile_traces(planner: User, content: bytes, row: int, field: str, words: str) -> None:
    with pytest.raises(TableError) as error:
        services.upload_trace(actor=planner, name="T", filename="t.csv", content=content)
    first = error.value.problems[0]
    assert (first.row, first.field) == (row, field)
    assert words in first.message
    assert not Trace.objects.exists()


MOONCAKE = (
    b'{"timestamp": 3000, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 9]}\n'
    b'{"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]}\n'
    b'{"timestamp": 500, "input_length": 512, "output_length": 9, "hash_ids": [0]}\n'
)


def test_prefix_blocks_of_a_mooncake_trace_are_kept_and_tell_the_hit_share(planner: User, workload: Workload) -> None:
    row = services.upload_trace(actor=planner, name="M", filename="m.jsonl", content=MOONCAKE)
    kept = Trace.objects.get(pk=row.pk)
    assert kept.arrays()[0].tolist() == [0.0, 0.5, 3.0]  # milliseconds there
    blocks = kept.prefix_blocks()
    assert blocks is not None
    assert ([own.tolist() for own in blocks[0]], blocks[1]) == ([[0, 1, 2], [0], [0, 1, 9]], 512)
    share = (512 + 1024) / (1100 + 512 + 1500)
    assert kept.prefix_hit == pytest.approx(share)
    workload.trace, workload.input_tokens, workload.prefix_hit = kept, {"kind": "trace"}, 0.0
    assert plan_load(workload).prefix_hit == pytest.approx(share)
    workload.prefix_hit = 0.25
    assert plan_load(workload).prefix_hit == 0.25
    workload.prefix_hit, workload.input_tokens = 0.0, {"kind": "fixed", "value": 512}
    assert plan_load(workload).prefix_hit == 0.0


def test_times_of_a_mooncake_trace_without_its_blocks_are_not_taken_for_seconds() -> None:
    lines = [json.loads(line) for line in MOONCAKE.splitlines()]
    bare = "\n".join(json.dumps({key: item for key, item in line.items() if key != "hash_ids"}) for line in lines)
    with pytest.raises(TableError) as error:
        parse_trace("m.jsonl", bare.encode())
    assert (error.value.problems[0].field, error.value.problems[0].value) == ("timestamp", "3000")
    found = parse_trace("m.jsonl", bare.replace("timestamp", "arrival_s").encode())
    assert found.times_s is not None
    assert found.times_s.tolist() == [0.0, 500.0, 3000.0]


def test_prefix_blocks_of_other_sizes_and_of_none() -> None:
    csv = b"timestamp_s,input_tokens,output_tokens,prefix_block_ids\n0,100,5,7 8\n1,130,5,7 8 9\n2,40,5,\n"
    found = parse_trace("t.csv", csv)
    assert found.block_tokens == 64
    assert found.blocks is not None
    assert [own.tolist() for own in found.blocks] == [[7, 8], [7, 8, 9], []]
    assert found.times_s is not None
    assert found.times_s.tolist() == [0.0, 1.0, 2.0]
    assert parse_trace("t.csv", CSV).blocks is None


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (b'"0 x"', "whole numbers"), (b"[0, -1]", "whole numbers"), (b"[0, 1.5]", "whole numbers"),
        (b"[0, true]", "whole numbers"), (b"7", "a list"), (b"null", "a list"),
        (b"[0, 1, 2, 3, 4]", "fit no block size"), (b"[9223372036854775808, 1]", "whole numbers"),
    ],
)  # fmt: skip
def test_hostile_prefix_blocks(ids: bytes, words: str) -> None:
    line = b'{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": ' + ids + b"}"
    with pytest.raises(TableError, match=words) as error:
        parse_trace("m.jsonl", line)
    assert error.value.problems[0].field == "hash_ids"


def test_gzip_bomb_is_never_unpacked_wholly(settings: Any) -> None:
    settings.TRACE_MAX_BYTES = 2**20
    with pytest.raises(TableError, match="larger than 1 MiB"):
        parse_trace("t.csv.gz", gzip.compress(b"0" * (64 * 2**20)))


@pytest.mark.parametrize("line", [b"[1]", b"{", b"[" * 100_000, b'"x"'])
def test_hostile_json_lines(line: bytes) -> None:
    with pytest.raises(TableError, match="JSON"):
        parse_trace("t.jsonl", line)


@pytest.fixture
def long_trace(planner: User) -> Trace:
    """10,000 requests; those in the middle come ten times as fast; one in four is longer than 8,192 tokens."""
    gaps = np.ones(10_000)
    gaps[4000:8000] = 0.1
    tokens = np.where(np.arange(10_000) % 4 == 0, 9000, 100)
    row = Trace(name="Long", slug="long")
    row.pack(np.cumsum(gaps), tokens, np.full(10_000, 10))
    row.save()
    return row


def test_window_of_a_trace(workload: Workload, long_trace: Trace) -> None:
    workload.trace, workload.max_model_len = long_trace, 8192
    workload.input_tokens = {"kind": "trace"}
    assert services.left_out(workload) == 2500
    times, tokens_in, _ = services.trace_window(workload)
    assert len(tokens_in) == services.MAX_SAMPLES
    assert tokens_in.max() == 100, "what an engine would refuse is left out"
    assert times[-1] - times[0] > 5000, "taken evenly over the whole trace"
    workload.arrival = "trace"
    times, _, _ = services.trace_window(workload)
    assert times[-1] - times[0] < 2000, "the busiest stretch"
    facts = services.describe_workload(workload)
    assert facts["input"]["expected"] == 100
    assert facts["left_out"] == 2500


def test_install_every_catalogue_trace_once(db: None) -> None:
    first = services.install_trace(actor=None, catalogue_name="azure_2023_code")
    assert services.install_trace(actor=None, catalogue_name="azure_2023_code").pk == first.pk
    assert first.has_arrivals
    assert first.licence
    lengths = services.install_trace(actor=None, catalogue_name="lengths_arxiv_summarization")
    assert not lengths.has_arrivals


def test_the_rate_of_one_request_is_unknown(planner: User, administrator: User, client: Client) -> None:
    one = b"timestamp_s,input_tokens,output_tokens\n5,100,10\n"
    row = services.upload_trace(actor=planner, name="One", filename="t.csv", content=one)
    assert (row.rows, row.duration_s, row.mean_rate_per_s, row.has_arrivals) == (1, 0.0, None, False)
    client.force_login(administrator)
    shown = client.get(f"/api/v1/traces/{row.pk}/").json()
    assert shown["mean_rate_per_s"] is None
    page = client.get(reverse("admin:workloads_trace_changelist")).content.decode()
    assert '<td class="field-mean_rate_per_s">unknown</td>' in page


def test_a_trace_without_times_gives_no_arrivals(planner: User, workload: Workload) -> None:
    workload.trace = services.install_trace(actor=None, catalogue_name="lengths_arxiv_summarization")
    workload.arrival = "trace"
    with pytest.raises(ValidationError, match="without arrival times"):
        services.save_workload(actor=planner, workload=workload)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "4 requests/s, poisson arrivals"),
        ({"load_kind": "closed", "concurrency": 1200}, "1,200 users"),
        ({"load_kind": "offline", "requests": 50000}, "50,000 requests, all at once"),
    ],
)
def test_load_in_words(workload: Workload, change: dict, words: str) -> None:
    for name, value in change.items():
        setattr(workload, name, value)
    assert words in services.load_in_words(workload)


WEEK = [4.0 if hour < 120 and 8 <= hour % 24 < 18 else 1.0 for hour in range(168)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"turns_low": 3, "turns_high": 2}, "turns_high"),
        ({"shared_tokens": 100}, "shared_tokens"),
        ({"turns_high": 4, "prefix_hit": 0.5}, "prefix_hit"),
        ({"hour_profile": [1.0] * 24}, "hour_profile"),
        ({"hour_profile": ["x"] * 168}, "hour_profile"),
        ({"hour_profile": WEEK, "mean_load_share": 0.9}, "mean_load_share"),
        ({"growth_per_month": 2.0}, "growth_per_month"),
        ({"plan_for_month": 500}, "plan_for_month"),
    ],
)
def test_sessions_and_profiles_are_checked(
    planner: User, workload: Workload, changes: dict[str, Any], named: str
) -> None:
    for name, value in changes.items():
        setattr(workload, name, value)
    with pytest.raises(ValidationError) as refused:
        services.save_workload(actor=planner, workload=workload)
    assert named in refused.value.message_dict


def test_sessions_and_profiles_reach_the_planner(planner: User, workload: Workload) -> None:
    workload.turns_low, workload.turns_high, workload.think_s, workload.shared_tokens = 2, 10, 20.0, 800
    workload.hour_profile, workload.plan_for_month = WEEK, 6
    stored = services.save_workload(actor=planner, workload=workload)
    found = plan_workload(stored)
    assert found.load.turns == Lengths("uniform", low=2, high=10)
    assert (found.load.think_s, found.load.shared_tokens) == (20.0, 800)
    assert found.mean_load_share == pytest.approx((50 * 4 + 118) / 168 / 4)
    assert found.hour_profile == tuple(WEEK)
    assert found.plan_for_month == 6
    assert "sessions of 2 to 10 turns" in services.load_in_words(stored)
