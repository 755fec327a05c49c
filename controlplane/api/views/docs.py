"""The API about itself: its root, its OpenAPI document, and Swagger UI from the files that ship with the product."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.api.paths import path_to
from controlplane.api.views.base import ApiMixin, OneRenderer


class RootView(ApiMixin, APIView):
    """What there is."""

    @extend_schema(responses=OpenApiTypes.OBJECT, operation_id="root")
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Every list and tool of the API, with its path."""
        from controlplane.api.urls import PLAIN, router  # the routes import this module

        lists = {prefix: path_to(f"{basename}-list") for prefix, _, basename in router.registry}
        return Response({**lists, **{name.replace("-", "/", 1): path_to(name) for name in PLAIN}})


class SchemaView(SpectacularAPIView):
    """The OpenAPI document; it holds no secret, so nobody has to sign in for it."""

    permission_classes = (AllowAny,)


class DocsView(SpectacularSwaggerSplitView):
    """Swagger UI under the strict content security policy: no inline script, no inline style, no network."""

    permission_classes = (AllowAny,)
    content_negotiation_class = OneRenderer
    url_name = "api:schema"
    template_name = "api/docs.html"


class NowhereView(ApiMixin, APIView):
    """Any other path below /api/."""

    permission_classes = (AllowAny,)
    schema = None

    def known_query(self, request: Request) -> tuple[str, ...] | None:
        """Any: that there is nothing comes first."""
        return None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Say that there is nothing."""
        super().initial(request, *args, **kwargs)
        raise Http404
