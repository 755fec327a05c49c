"""The catalogue that ships with the product: facts with their sources. Read only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from controlplane.api.serializers import catalogue as shapes
from controlplane.api.views.base import ApiMixin
from planner import catalog
from planner.errors import InputError, PlannerError
from planner.jsonio import to_json

SEARCH = OpenApiParameter("search", OpenApiTypes.STR, description="Only what holds this text, in any of its words.")


class CatalogueView(ApiMixin, APIView):
    """A list of facts."""

    serializer: type[Serializer]
    query_names: ClassVar[tuple[str, ...]] = ("search",)

    def answer(self, request: Request, items: Iterable[Any]) -> Response:
        """All that hold the text of ``search``."""
        rows = self.serializer(items, many=True).data
        text = request.query_params.get("search", "").lower()
        return Response([row for row in rows if text in " ".join(map(str, row.values())).lower()] if text else rows)


class GpusView(CatalogueView):
    """GPUs."""

    serializer = shapes.CatalogueGpuSerializer

    @extend_schema(
        operation_id="catalogue_gpus_list", parameters=[SEARCH], responses=shapes.CatalogueGpuSerializer(many=True)
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """GPUs, with the facts that the planner uses."""
        return self.answer(request, catalog.list_gpus())


class GpuView(ApiMixin, APIView):
    """One GPU."""

    @extend_schema(operation_id="catalogue_gpus_retrieve", responses=shapes.CatalogueGpuSerializer)
    def get(self, request: Request, name: str, *args: Any, **kwargs: Any) -> Response:
        """One GPU by name or alias."""
        try:
            return Response(shapes.CatalogueGpuSerializer(catalog.get_gpu(name)).data)
        except InputError as error:
            raise Http404(str(error)) from error


class NodeTypesView(CatalogueView):
    """Server models."""

    serializer = shapes.CatalogueNodeTypeSerializer

    @extend_schema(parameters=[SEARCH], responses=shapes.CatalogueNodeTypeSerializer(many=True))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Server models."""
        return self.answer(request, catalog.list_node_types())


class PricesView(CatalogueView):
    """Published prices."""

    serializer = shapes.CataloguePriceSerializer
    query_names = ("search", "gpu")

    @extend_schema(
        parameters=[SEARCH, OpenApiParameter("gpu", OpenApiTypes.STR, description="Only of this GPU (name or alias).")],
        responses=shapes.CataloguePriceSerializer(many=True),
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Published prices of GPUs, each with source, date and reliability."""
        wanted = request.query_params.get("gpu")
        names = [catalog.get_gpu(wanted).name] if wanted else [gpu.name for gpu in catalog.list_gpus()]
        return self.answer(request, [fact for name in names for fact in catalog.price_facts(name)])


class ModelsView(CatalogueView):
    """Models."""

    serializer = shapes.CatalogueModelSerializer

    @extend_schema(
        operation_id="catalogue_models_list", parameters=[SEARCH], responses=shapes.CatalogueModelSerializer(many=True)
    )
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Models whose configuration ships with the product."""
        specs = (catalog.get_model(name, allow_path=False) for name in catalog.list_models())
        return self.answer(request, specs)


class ModelView(ApiMixin, APIView):
    """One model."""

    @extend_schema(operation_id="catalogue_models_retrieve", responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, name: str, *args: Any, **kwargs: Any) -> Response:
        """One model by id or alias: its layers as the planner sees them, and where the configuration is from."""
        try:
            spec = catalog.get_model(name, allow_path=False)
        except PlannerError as error:
            raise Http404(str(error)) from error
        source = catalog.model_source(spec.model_id) if spec.model_id in catalog.list_models() else None
        return Response({"spec": to_json(spec), "source": to_json(source)})


class TracesView(CatalogueView):
    """Traces."""

    serializer = shapes.CatalogueTraceSerializer

    @extend_schema(parameters=[SEARCH], responses=shapes.CatalogueTraceSerializer(many=True))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Request traces that ship with the product."""
        rows = []
        for name in catalog.list_traces():
            trace = catalog.get_trace(name)
            rows.append(
                {
                    "name": trace.name,
                    "description": trace.description,
                    "requests": len(trace.input_tokens),
                    "has_arrivals": trace.times_s is not None,
                    "prefix_hit": trace.prefix_hit,
                    "source": trace.source,
                    "licence": trace.licence,
                }
            )
        return self.answer(request, rows)
