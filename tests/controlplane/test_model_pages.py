"""A model added on its page: with the index of its files, without, and with one that says nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from controlplane.workloads.models import LlmModel

pytestmark = pytest.mark.django_db

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def add(page: Client, index: Any = None, model_id: str = "team/llama") -> Any:
    files = {"config": SimpleUploadedFile("config.json", json.dumps(LLAMA).encode())}
    if index is not None:
        files["weight_index"] = SimpleUploadedFile("model.safetensors.index.json", json.dumps(index).encode())
    return page.post("/workloads/models/add/", {"model_id": model_id, "source": "", **files})


@pytest.mark.parametrize(
    ("total", "heading", "words"),
    [
        (16_060_522_496, "The files hold these weights", "16.06 GB of weights are stored, 16.06 GB are counted."),
        (5_700_000_000, "The files hold other weights", "but 16.06 GB are counted (-65%)"),
        (None, "", ""),
    ],
)
def test_a_model_says_whether_its_files_hold_it(
    admin_page: Client, total: int | None, heading: str, words: str
) -> None:
    index = None if total is None else {"metadata": {"total_size": total}, "weight_map": {}}
    answer = add(admin_page, index)
    assert answer.status_code == 302, answer.content.decode()
    page = admin_page.get(answer.headers["Location"]).content.decode()
    assert words in page
    assert heading in page
    assert ("The files hold" in page) == (total is not None)


def test_an_index_without_its_size_is_refused_beside_its_field(admin_page: Client) -> None:
    answer = add(admin_page, {"weight_map": {}})
    assert answer.status_code == 422
    assert "metadata.total_size" in answer.content.decode()
    assert not LlmModel.objects.exists()
