"""A stand-in for vLLM or TensorRT-LLM on any GPU, timed by the planner's step times.

It speaks the OpenAI API, streams, shows the real engine's metric names and start-up lines, and batches continuously
as the real one does - in real time. Nothing it yields is knowledge of hardware: every answer carries
``X-Tonnage-Emulated: true``, /v1/models says ``"emulated": true``, and so does its log.
"""
