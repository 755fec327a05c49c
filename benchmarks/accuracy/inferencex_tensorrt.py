"""What SemiAnalysisAI/InferenceX published of its runs on TensorRT-LLM, by date.

DeepSeek, from its history: the launch scripts ``benchmarks/dsr1_fp{4,8}_{b200,h200}_trt{,_mtp}*.sh``, the shapes and
client counts of each configuration in ``.github/configs/nvidia-master.yaml``, and ``perf-changelog.yaml``, which says
which configurations ran when:

- until 2025-11-03 the script itself chose expert parallelism and attention DP from the shape and the clients, and the
  rows state neither; nor do they state the image, 1.1.0rc2.post2;
- until 2026-01-21 a step held one prompt and the decodes (``max_num_tokens`` = clients + prompt + 64, in whole 64s),
  then at least 8192 tokens; with multi-token prediction it always holds one prompt;
- multi-token prediction ran on 2026-01-14, alone, and in every run of the image 1.2.0rc6.post3 (the other scripts used
  post2); of later runs of the first image those with attention DP of more than 64 clients on H200, which no other
  configuration has. Three drafts, one with attention DP. The rows do not say so.
- in its second version (1.2.0rc6) many scripts ask for piecewise graphs.

How many drafts were accepted is not published. From other measurements of the same model: 0.81-0.82 of first drafts
(vllm-project/vllm pull request 12755, DeepSeek-R1), and 3.1-3.2 tokens a step with seven drafts (model card of
nebius/MTP-DeepSeek-V3-0324, the original head). First drafts at 0.82 and later ones at 0.62 give both, and 1.64
accepted of three, as 0.73 at each place does.

gpt-oss (``gptoss_fp4_{b200,h200}_trt*.sh``): until 2025-11-03 the script spread experts over all GPUs on H200 and, with
attention DP, on B200 from 256 clients; the image of the B200 runs was 1.2.0rc0 then. Llama, until 2025-10-30
(``70b_fp{4,8}_{b200,h200}_trt*.sh``): one image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CHOSEN_BY_YAML = "2025-11-03"
_ROOM_FOR_PROMPTS = "2026-01-22"
_FIRST_DRAFTS = "2026-01-14"
_FIRST_VERSION, _SECOND_VERSION = "1.1.0rc2", "1.2.0rc6"
_DRAFT_IMAGE = "1.2.0rc6.post3"
_ACCEPTANCE = {1: 0.82, 3: 0.73}
_WAIT, _DEFAULT_WAIT = 60, 50
"""``timeout_iters`` of DeepSeek's scripts, and where ``enable_balance`` alone is asked for."""


@dataclass(frozen=True)
class Run:
    """One run: the row's statements and what the scripts made of them. ``gpus`` of the deployment."""

    date: str
    version: str
    gpus: int
    prompt: int
    output: int
    clients: int
    fp4: bool
    blackwell: bool
    ep: int
    attention_dp: bool

    @property
    def second(self) -> bool:
        """Whether the scripts are those of the second version."""
        return self.version.startswith(_SECOND_VERSION)

    @property
    def short(self) -> bool:
        """Whether prompts and outputs have 1,024 tokens."""
        return self.prompt < 2048 and self.output < 2048

    @property
    def drafts(self) -> int:
        """Tokens drafted a step."""
        late = self.version.startswith("1.1") and self.date > _FIRST_DRAFTS
        only_with_drafts = late and not self.blackwell and self.attention_dp and self.clients > 64
        if self.date == _FIRST_DRAFTS or self.version == _DRAFT_IMAGE or only_with_drafts:
            return 1 if self.attention_dp else 3
        return 0


def settings(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    """Fields of the estimate contract for one row of TensorRT-LLM; none for a model that has no script here."""
    model = row["model"].lower()
    if "deepseek" in model:
        return _deepseek(row, load)
    if "gpt-oss" in model:
        return _gpt_oss(row, load)
    return _llama(row, load) if "llama" in model else {}


def _gpt_oss(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    """Messages of 20 tokens, padded graphs, a step that holds many prompts."""
    clients, blackwell, dp = int(load["concurrency"]), not row["gpu"].startswith("H"), int(row["dp"] or 1)
    gpus, attention_dp = int(row["tp"] or 1) * dp, dp > 1
    found: dict[str, Any] = {
        "kv_cache_dtype": "fp8" if blackwell else "bf16",
        "free_gpu_memory_fraction": 0.85,
        "max_num_batched_tokens": 20000,
        "max_num_seqs": 512 if blackwell else clients,
        "max_cudagraph_capture_size": clients,
        "load": {**load, "stream_interval": 20},
    }
    if row["date"] < _CHOSEN_BY_YAML:
        if blackwell and not row["engine_version"]:
            found["engine_version"] = "1.2.0rc0"
        attention_dp = blackwell and clients >= 256
        found |= {"ep": 1 if blackwell and not attention_dp else gpus}
        found |= {"tp": 1, "dp": gpus} if attention_dp else {"tp": gpus, "dp": 1}
    if attention_dp:
        found["attention_dp_wait_iters"] = _DEFAULT_WAIT
    return found


def _llama(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    waits = float(row["isl"]) < 2048 and float(row["osl"]) < 2048 and int(row["tp"] or 1) < 8
    return {
        **({"batch_wait_iters": 20, "batch_wait_tokens_ratio": 0.9} if waits else {}),
        "engine_version": _FIRST_VERSION,
        "kv_cache_dtype": "fp8",
        "max_num_batched_tokens": 16384,
        "max_cudagraph_capture_size": 1024,
        "load": {**load, "stream_interval": 10},
    }


def _deepseek(row: dict[str, str], load: dict[str, Any]) -> dict[str, Any]:
    run = _run(row, int(load["concurrency"]))
    found: dict[str, Any] = {
        "engine_version": _SECOND_VERSION if run.second else _FIRST_VERSION,
        "kv_cache_dtype": "fp8",
        "free_gpu_memory_fraction": _memory_share(run),
        "max_cudagraph_capture_size": _largest_graph(run),
        "moe_backend": _experts(run),
        "load": {**load, "stream_interval": 10},
        "tp": 1 if run.attention_dp else run.gpus,
        "dp": run.gpus if run.attention_dp else 1,
        "ep": run.ep,
    }
    if run.drafts:
        seats = _seats(run)
        found["max_num_seqs"] = seats
        found["max_num_batched_tokens"] = _whole_64(seats * (run.drafts + 1) + run.prompt)
        found["speculative_tokens"], found["acceptance_rate"] = run.drafts, _ACCEPTANCE[run.drafts]
    else:
        needed = _whole_64(run.clients + run.prompt)
        found["max_num_batched_tokens"] = max(8192, needed) if run.date >= _ROOM_FOR_PROMPTS else needed
    if run.attention_dp:
        found["attention_dp_wait_iters"] = _WAIT
    if run.second and run.blackwell and not (run.fp4 or run.drafts) and run.clients >= 64 and run.short:
        found["batch_wait_iters"], found["batch_wait_tokens_ratio"] = 40, 0.8
    if _piecewise(run):
        found["piecewise_cuda_graphs"] = True
    return found


def _run(row: dict[str, str], clients: int) -> Run:
    dp = int(row["dp"] or 1)
    gpus, ep, attention_dp = int(row["tp"]) * dp, int(row["ep"] or 1), dp > 1
    prompt, output = int(float(row["isl"])), int(float(row["osl"]))
    fp4, blackwell = row["precision"] == "fp4", not row["gpu"].startswith("H")
    if row["date"] < _CHOSEN_BY_YAML:
        spread, attention_dp = _chosen_by_script(fp4, blackwell, gpus, prompt, output, clients)
        ep = gpus if spread else 1
    return Run(row["date"], row["engine_version"], gpus, prompt, output, clients, fp4, blackwell, ep, attention_dp)


def _chosen_by_script(
    fp4: bool, blackwell: bool, gpus: int, prompt: int, output: int, clients: int
) -> tuple[bool, bool]:
    """Whether the first scripts spread whole experts over the GPUs, and whether they ran attention DP."""
    long_prompt, long_output = prompt > 4096, output > 4096
    if not fp4:
        up_to = 64
        if not long_output:
            up_to = (64 if long_prompt else 32) if blackwell else (32 if long_prompt else 64)
        return True, clients > up_to
    if long_prompt:
        return clients > 32, clients > 32
    up_to = 32 if gpus == 4 else 16 if long_output else 8
    return clients > up_to, clients >= 256


def _whole_64(tokens: int) -> int:
    """The scripts' token limit of a step that must hold ``tokens``."""
    return (tokens + 64 + 63) // 64 * 64


def _seats(run: Run) -> int:
    """``max_batch_size``, which only the scripts with drafts state: of a rank."""
    if not run.attention_dp:
        return run.clients
    if run.second and run.fp4:
        return max(1, run.clients // 4)
    return max(1, run.clients // run.gpus)


def _largest_graph(run: Run) -> int:
    if not run.blackwell:
        return 128
    if not run.second:
        return 512 if run.fp4 else 256
    if not run.attention_dp:
        return run.clients
    return max(1, run.clients // (4 if run.fp4 else 8))


def _memory_share(run: Run) -> float:
    if not run.blackwell:
        return 0.75
    if run.second and not run.fp4:
        if run.attention_dp:
            return 0.7
        if not run.drafts and run.gpus == 4 and run.prompt > 4096:
            return 0.75
    return 0.8


def _experts(run: Run) -> str:
    """``moe_config.backend``."""
    if not run.blackwell:
        return "CUTLASS"
    if run.fp4:
        return "CUTLASS" if run.attention_dp else "TRTLLM"
    return "TRTLLM" if run.second and not run.attention_dp else "DEEPGEMM"


def _piecewise(run: Run) -> bool:
    """Whether ``enable_piecewise_cuda_graph`` was asked for."""
    if not (run.second and run.blackwell):
        return False
    shape = (run.prompt > 4096, run.output > 4096)
    if run.fp4 and not run.drafts:
        return shape == (False, False) and run.gpus == 8 and run.ep == 8
    if run.fp4:
        if shape == (False, False):
            return run.clients in (32, 64) or (run.clients == 128 and not run.attention_dp)
        return shape == (False, True) and run.clients == 64
    if run.drafts:
        least = {(False, False): 8, (False, True): 16, (True, False): 32}[shape]
        return not run.attention_dp and run.clients >= least
    least = {(False, False): 64, (False, True): 128, (True, False): 64}[shape]
    return run.clients >= least and not (shape == (False, True) and run.clients >= 256)
