"""Questions to the planner that change nothing: estimates and memory."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiExample, PolymorphicProxySerializer, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import ScopedRateThrottle, UserRateThrottle
from rest_framework.views import APIView

from controlplane.api import asking
from controlplane.api.serializers import catalogue as shapes
from controlplane.api.views.base import ApiMixin

EXAMPLE = {
    "id": 1,
    "model": "Qwen/Qwen3-8B",
    "gpu": "H200",
    "engine": "vllm",
    "tp": 1,
    "load": {"kind": "closed", "concurrency": 32},
    "input_tokens": 1024,
    "output_tokens": 256,
    "usd_per_gpu_hour": 2.5,
}


def one_or_many(name: str, serializer: type) -> Any:
    """An object or a list of them, in the OpenAPI document."""
    return PolymorphicProxySerializer(
        component_name=name,
        serializers=[serializer, serializer(many=True)],
        resource_type_field_name=None,
        many=False,
    )


class PlannerView(ApiMixin, APIView):
    """Computes; stores nothing."""

    changes_nothing = True
    throttle_classes = (UserRateThrottle, ScopedRateThrottle)
    throttle_scope = "planner"


class EstimateView(PlannerView):
    """The estimate contract."""

    @extend_schema(
        request=one_or_many("EstimateLines", shapes.EstimateRequestSerializer),
        responses=one_or_many("EstimateAnswers", shapes.EstimateSerializer),
        examples=[OpenApiExample("One line", EXAMPLE, request_only=True)],
        tags=["planner"],
    )
    def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Memory, speed and cost of a deployment: one object, or a list of up to 100; answered in the same order."""
        data = request.data
        if isinstance(data, list):
            if len(data) > asking.MAX_LINES:
                raise ValidationError(
                    f"{len(data):,} lines; at most {asking.MAX_LINES} are answered at once. Split them."
                )
            return Response(asking.answer_lines(data))
        if not data or not isinstance(data, dict):
            raise ValidationError("The body must be one JSON object of the estimate contract, or a list of them.")
        return Response(asking.answer_line(data))


class MemoryView(PlannerView):
    """What fits."""

    @extend_schema(request=shapes.MemoryRequestSerializer, responses=shapes.MemorySerializer, tags=["planner"])
    def post(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """The memory of one GPU: each part, the KV pool as the engine pages it, flags that give it, and remedies."""
        form = shapes.MemoryRequestSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        return Response(asking.memory_answer(form.validated_data))
