"""The page Memory: what it answers, offers and refuses."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db


def test_memory_page_answers_and_explains(admin_page: Client) -> None:
    fits = admin_page.get("/memory/?model=Qwen/Qwen3-32B&gpu=H200-SXM-141GB&engine=vllm").content.decode()
    assert "Fits with" in fits
    assert "--max-num-seqs" in fits
    too_big = admin_page.get("/memory/?model=Qwen/Qwen3-32B&gpu=A10&engine=vllm").content.decode()
    assert "Does not fit." in too_big
    unknown = admin_page.get("/memory/?model=no/such&gpu=A10&engine=vllm")
    assert unknown.status_code == 200
    assert "no/such" in unknown.content.decode()
    part = admin_page.get("/memory/?model=Qwen/Qwen3-32B&gpu=A10", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part


def test_memory_page_offers_what_would_fit_as_links(admin_page: Client) -> None:
    body = admin_page.get("/memory/?model=meta-llama/Llama-3.1-70B-Instruct&gpu=H100&engine=vllm&tp=2").content.decode()
    assert "Does not fit." in body
    links = [unescape(link) for link in re.findall(r'href="(\?[^"]*max_model_len=\d+[^"]*)"', body)]
    assert links
    assert "Fits with" in admin_page.get(f"/memory/{links[0]}").content.decode()


def test_memory_page_takes_the_device_and_the_requests(admin_page: Client) -> None:
    asked = {
        "model": "Qwen/Qwen3-8B", "gpu": "L40S", "engine": "vllm", "gpu_memory_gib": "40", "used_by_others_gib": "3",
        "share": "0.85", "max_model_len": "8192", "input_tokens": "2000", "output_tokens": "300", "concurrency": "64",
        "demand": "lengths", "spread": "0.5",
    }  # fmt: skip
    body = admin_page.get("/memory/", asked).content.decode()
    assert "Preemption cliff" in body
    assert "figure-kv-live" in body
    assert "Held, never used" in body
    assert "vllm serve Qwen/Qwen3-8B" in body
    busy = admin_page.get("/memory/", {**asked, "used_by_others_gib": "20"}).content.decode()
    assert "20.00 of 40.00 GiB are free at start" in busy
    trace = admin_page.get("/memory/", {**asked, "demand": "lengths_mlperf_llama3_1_8b_datacenter"}).content.decode()
    assert "times as many requests" in trace


def test_memory_page_shows_tensorrt_llm_as_it_is_configured(admin_page: Client) -> None:
    asked = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100", "engine": "tensorrt_llm", "max_model_len": "8192",
        "kv_cache_max_gpu_gib": "10", "kv_cache_host_gib": "4", "capacity_policy": "MAX_UTILIZATION",
    }  # fmt: skip
    body = admin_page.get("/memory/", asked).content.decode()
    assert "llm-api.yaml" in body
    assert "max_gpu_total_bytes: 10737418240" in body
    assert "capacity_scheduler_policy: MAX_UTILIZATION" in body
    assert "more in host memory, for reuse" in body


def test_memory_page_sets_vllms_pool_in_blocks(admin_page: Client) -> None:
    """50,000 tokens are 3,125 blocks of 16; the command says both, and a pool of less than a block is no pool."""
    asked = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100", "engine": "vllm", "max_model_len": "8192"}
    body = unescape(admin_page.get("/memory/", {**asked, "kv_cache_max_tokens": "50000"}).content.decode())
    assert re.search(r"--block-size 16[^-]*--num-gpu-blocks-override 3125", body)
    assert "num_gpu_blocks_override sets the pool: 3,125 blocks of 16 tokens." in body
    assert "--num-gpu-blocks-override 3125" not in admin_page.get("/memory/", asked).content.decode()
    short = unescape(admin_page.get("/memory/", {**asked, "kv_cache_max_tokens": "9"}).content.decode())
    assert "kv_cache_max_tokens: is less than one block (got 9). Give 16 tokens or more." in short


def test_memory_page_names_the_field_that_is_wrong(admin_page: Client) -> None:
    asked = {"model": "Qwen/Qwen3-8B", "gpu": "H100", "engine": "vllm", "max_model_len": "2048"}
    body = admin_page.get("/memory/", {**asked, "input_tokens": "2000", "output_tokens": "300"}).content.decode()
    assert "max_model_len: input and output exceed the context (got 2048)" in body
    without = admin_page.get("/memory/", {**asked, "demand": "lengths"}).content.decode()
    assert "input_tokens: is missing" in without
    version = admin_page.get("/memory/", {**asked, "version": "new"}).content.decode()
    assert "version: not an engine version" in version
    absurd = admin_page.get("/memory/", {**asked, "gpu_memory_gib": "-4"}).content.decode()
    assert "greater than or equal to 0.1" in absurd
