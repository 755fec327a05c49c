"""Colours of the figures: the light values of css/tokens.css, and what each becomes in the dark theme."""

from __future__ import annotations

ENGINE = {"vllm": "#3b76c4", "vllm_cpu": "#3b76c4", "tensorrt_llm": "#4f8f2f", "emulated": "#6a7683"}
ENGINE_BAND = {"vllm": "rgba(59,118,196,0.12)", "tensorrt_llm": "rgba(79,143,47,0.12)"}
ENGINE_TEXT = {"vllm": "#2a62ad", "vllm_cpu": "#2a62ad", "tensorrt_llm": "#3c7421", "emulated": "#5c6874"}
"""An engine's colour where it is text: dark enough to be read."""
CATEGORIES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#c9b900", "#3f4a55")
MEMORY = {
    "weights": "#0072b2",
    "activation": "#e69f00",
    "graphs": "#cc79a7",
    "non-torch": "#3f4a55",
    "lora": "#d55e00",
    "kv": "#009e73",
    "free": "#dfe5ea",
}
TEXT, TEXT_2, TEXT_3 = "#18212a", "#485664", "#5f6d7b"
GRID, AXIS, SURFACE = "#e6eaee", "#b9c3cd", "#ffffff"
ACCENT, ATTENTION, FAILED, OK = "#0b6468", "#8a5300", "#b3261e", "#1f6f3a"
ACCENT_BAND, ATTENTION_BAND = "rgba(11,100,104,0.12)", "rgba(138,83,0,0.12)"

DARK = {
    TEXT: "#e7edf2",
    TEXT_2: "#b0bcc8",
    TEXT_3: "#8d9ba9",
    GRID: "#242d36",
    AXIS: "#465462",
    SURFACE: "#171d24",
    ACCENT: "#54bdb8",
    ATTENTION: "#e8b04b",
    FAILED: "#f28b82",
    OK: "#6cc487",
    ACCENT_BAND: "rgba(84,189,184,0.16)",
    ATTENTION_BAND: "rgba(232,176,75,0.16)",
    ENGINE_BAND["vllm"]: "rgba(59,118,196,0.24)",
    ENGINE_BAND["tensorrt_llm"]: "rgba(79,143,47,0.26)",
    MEMORY["free"]: "#2b3640",
    CATEGORIES[6]: "#f0e442",
    CATEGORIES[7]: "#aab5c0",
    ENGINE["emulated"]: "#93a0ad",
    ENGINE_TEXT["vllm"]: "#8ab4ea",
    ENGINE_TEXT["tensorrt_llm"]: "#93c977",
    ENGINE_TEXT["emulated"]: "#a9b4bf",
}
"""Light colour to dark colour; a colour that is not here stays."""
