"""What every view shares: size limits, idempotency, lists, changes with versions, bulk changes, jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from django.conf import settings
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import models, transaction
from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import mixins, status, viewsets
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer

from controlplane.api import idempotency, parsing
from controlplane.api.filters import refuse_unknown
from controlplane.api.paths import path_to
from controlplane.api.preconditions import check_version, expected_version, with_etag
from controlplane.api.problems import conflict_of
from controlplane.api.serializers.base import RecordSerializer
from controlplane.core import access
from controlplane.core.models import Role, User

MAX_BULK = 500
TRUE, FALSE = ("true", "1", "yes"), ("false", "0", "no")
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
BRIEF = OpenApiParameter("brief", OpenApiTypes.BOOL, description="Only the fields that name a record.")
FIELDS = OpenApiParameter("fields", OpenApiTypes.STR, description="Only these fields, separated by commas.")
DELETED = OpenApiResponse(description="Deleted.")


class OneRenderer(DefaultContentNegotiation):
    """The first renderer, whatever Accept says: a problem must reach everybody."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> Any:
        """The renderer and its media type."""
        return renderers[0], renderers[0].media_type


class ApiMixin:
    """Bounds the body, refuses unknown parameters, keeps the answer to a request that carries an idempotency key."""

    content_negotiation_class: type[BaseContentNegotiation] = OneRenderer
    max_body_bytes: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    changes_nothing: ClassVar[bool] = False  # POST here computes only
    changing_role: ClassVar[Role | None] = None  # asked for before the body is read; the services ask again, by site
    query_names: ClassVar[tuple[str, ...]] = ()  # what it takes in its query; of an act given with @action

    def known_query(self, request: Request) -> tuple[str, ...] | None:
        """Names that the query may hold; None: another part of the view refuses what is unknown."""
        return self.query_names

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Before the method runs."""
        length = request.META.get("CONTENT_LENGTH") or "0"
        if request.method in CHANGING and length.isdecimal() and int(length) > self.max_body_bytes:
            raise parsing.too_large(self.max_body_bytes)
        super().initial(request, *args, **kwargs)  # type: ignore[misc]
        if self.changing_role is not None and request.method in CHANGING:
            access.require_anywhere(actor_of(request), self.changing_role)
        method = (request.method or "").lower()
        if method == "options" or not hasattr(self, method):
            return
        if (known := self.known_query(request)) is not None:
            refuse_unknown(request, known)
        key = request.headers.get(idempotency.HEADER)
        if key is not None and request.method in CHANGING and not self.changes_nothing:
            setattr(self, method, partial(idempotency.run_once, getattr(self, method), key))


def actor_of(request: Request) -> User:
    """Who asks; behind MayUse there is somebody."""
    if not isinstance(request.user, User):
        raise TypeError("an anonymous request reached a view for users")
    return request.user


def flag(request: Request, name: str) -> bool:
    """A yes or no of the query; raises ValidationError for anything else."""
    text = request.query_params.get(name, "false").lower()
    if text not in (*TRUE, *FALSE):
        raise ValidationError({name: "Must be true or false."})
    return text in TRUE


@contextmanager
def acting() -> Iterator[None]:
    """Around an act on a record: a refusal because of its state is a conflict (409), not a malformed request."""
    try:
        yield
    except DjangoValidationError as error:
        raise conflict_of(error) from error


class ReadViewSet(ApiMixin, mixins.ListModelMixin, mixins.RetrieveModelMixin, viewsets.GenericViewSet):
    """Lists and shows records."""

    serializer_class: type[RecordSerializer]
    lookup_value_regex = "[0-9]{1,18}"
    search_fields: ClassVar[tuple[str, ...]] = ()
    ordering_fields: ClassVar[tuple[str, ...]] = ("id",)

    def known_query(self, request: Request) -> tuple[str, ...] | None:
        """Those of the act; lists refuse by their filters."""
        if self.action == "list":
            return None
        return ("brief", "fields") if self.action == "retrieve" else self.query_names

    def get_object(self) -> Any:
        """The record of the path; its filters are those of lists only."""
        return get_object_or_404(self.get_queryset(), pk=self.kwargs[self.lookup_url_kwarg or self.lookup_field])

    def get_serializer_context(self) -> dict[str, Any]:
        """With the chosen fields, on reads."""
        context = dict(super().get_serializer_context())
        if self.request is not None and self.request.method == "GET" and self.action in ("list", "retrieve"):
            context["only"] = self._chosen_fields()
        return context

    def get_queryset(self) -> QuerySet:
        """The rows, without the long columns that a list leaves out."""
        rows = super().get_queryset()
        if self.action == "list" and not getattr(self, "swagger_fake_view", False):
            chosen = self._chosen_fields() or ()
            columns = {field.name for field in rows.model._meta.concrete_fields}
            long = [name for name in self._meta("detail_only") if name in columns and name not in chosen]
            rows = rows.defer(*long) if long else rows
        return rows

    @extend_schema(parameters=[BRIEF, FIELDS])
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Records, filtered, searched, ordered, in pages."""
        wanted = request.query_params.get("format", "json")
        if wanted != "json":
            return self.export(request, wanted)
        return super().list(request, *args, **kwargs)

    @extend_schema(parameters=[BRIEF, FIELDS])
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One record, with its version as ETag."""
        record = self.get_object()
        return with_etag(Response(self.get_serializer(record).data), record)

    def export(self, request: Request, form: str) -> Any:
        """The list in another form than JSON; here there is none."""
        raise ValidationError({"format": f"{form[:20]!r} is not offered here; use json."})

    def _chosen_fields(self) -> tuple[str, ...] | None:
        """Fields that ``brief`` or ``fields`` choose; in a list without them, all but the long ones."""
        known = self.serializer_class.Meta.fields
        if (text := self.request.query_params.get("fields")) is not None:
            names = tuple(name.strip() for name in text.split(",") if name.strip())
            for name in names:
                if name not in known:
                    raise ValidationError({"fields": f"{name[:60]!r} is not known; use some of: {', '.join(known)}."})
            return names or None
        if flag(self.request, "brief"):
            return self._meta("brief_fields")
        long = self._meta("detail_only")
        return tuple(name for name in known if name not in long) if self.action == "list" and long else None

    def _meta(self, name: str) -> tuple[str, ...]:
        return tuple(getattr(self.serializer_class.Meta, name))


class DeleteMixin:
    """Deletes one record at the version that the caller read."""

    delete: Callable[..., None]

    @extend_schema(responses={204: DELETED})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Delete one record."""
        with transaction.atomic():
            record = self.get_object()  # type: ignore[attr-defined]
            self.delete_record(record, request.data.get("version") if isinstance(request.data, dict) else None)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def delete_record(self, record: Any, given: Any) -> None:
        """Delete ``record`` when it still is at the version given."""
        request = self.request  # type: ignore[attr-defined]
        locked = type(record)._default_manager.select_for_update().filter(pk=record.pk)
        current = locked.values_list("version", flat=True).first() or 0
        check_version(expected_version(request, current, given), current)
        with acting():
            self.remove(record)

    def remove(self, record: Any) -> None:
        """Delete by the service that knows the rules."""
        raise NotImplementedError


class ChangeMixin(DeleteMixin):
    """Creates and changes records, one or many, through the service of their kind.

    ``related`` names validated values that are no columns; they are handed to ``store`` beside the record.
    """

    related: ClassVar[tuple[str, ...]] = ()

    def store(self, record: Any, expected: int | None, **related: Any) -> Any:
        """Create or change by the service that knows the rules; returns the record."""
        raise NotImplementedError

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Create one record."""
        serializer = self.get_serializer(data=request.data)  # type: ignore[attr-defined]
        serializer.is_valid(raise_exception=True)
        with transaction.atomic():
            record = self.write(serializer, None)
        response = Response(self.shown(record), status=status.HTTP_201_CREATED)
        response["Location"] = self.path_of(record)
        return with_etag(response, record)

    def update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Replace one record."""
        return self._change(request, partial=False)

    def partial_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Change some fields of one record."""
        return self._change(request, partial=True)

    def _change(self, request: Request, *, partial: bool) -> Response:
        record = self.get_object()  # type: ignore[attr-defined]
        given = request.data.get("version") if isinstance(request.data, dict) else None
        expected = expected_version(request, record.version, given)
        check_version(expected, record.version)
        serializer = self.get_serializer(record, data=request.data, partial=partial)  # type: ignore[attr-defined]
        serializer.is_valid(raise_exception=True)
        with transaction.atomic():
            record = self.write(serializer, expected)
        return with_etag(Response(self.shown(record)), record)

    def write(self, serializer: BaseSerializer, expected: int | None) -> Any:
        """Put validated values into the record and store it."""
        values = dict(serializer.validated_data)
        related = {name: values.pop(name) for name in self.related if name in values}
        record = serializer.instance
        if record is None:
            record = self.get_queryset().model()  # type: ignore[attr-defined]
        for name, value in values.items():
            setattr(record, name, value)
        return self.store(record, expected, **related)

    def shown(self, record: Any) -> Any:
        """The record as it is stored now, all fields."""
        fresh = self.get_queryset().get(pk=record.pk)  # type: ignore[attr-defined]
        return self.get_serializer(fresh).data  # type: ignore[attr-defined]

    def path_of(self, record: Any) -> str:
        """Where the record is."""
        return path_to(f"{self.basename}-detail", record.pk)  # type: ignore[attr-defined]


class BulkMixin(ChangeMixin):
    """Many records in one transaction: all are changed, or none."""

    @action(detail=False, methods=["post"], url_path="bulk", url_name="bulk")
    def bulk_create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Create many records, all or none."""
        serializers = self._checked([(None, item) for item in _items(request)], partial=False)
        with transaction.atomic():
            made = self._each(serializers, lambda serializer: self.write(serializer, None))
        return Response(self._shown_many(made), status=status.HTTP_201_CREATED)

    @bulk_create.mapping.patch
    def bulk_update(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Change many records, all or none; each item names its ``id`` and ``version``."""
        items = _items(request)
        with transaction.atomic():
            records = self._named(items)
            expected = [self._expected(request, row, item, at) for at, (row, item) in enumerate(records)]
            serializers = self._checked(
                [(row, {key: value for key, value in item.items() if key != "id"}) for row, item in records],
                partial=True,
            )
            pairs = list(zip(serializers, expected, strict=True))
            changed = self._each(pairs, lambda pair: self.write(pair[0], pair[1]))
        return Response(self._shown_many(changed))

    @bulk_create.mapping.delete
    def bulk_delete(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Delete many records, all or none; each item names its ``id`` and ``version``."""
        items = _items(request)
        with transaction.atomic():
            self._each(self._named(items), lambda pair: self.delete_record(pair[0], pair[1].get("version")))
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _expected(self, request: Request, record: Any, item: dict[str, Any], at: int) -> int | None:
        with _at(at):
            expected = expected_version(request, record.version, item.get("version"))
            check_version(expected, record.version)
            return expected

    def _named(self, items: list[dict[str, Any]]) -> list[tuple[Any, dict[str, Any]]]:
        """Each item with its record; raises ValidationError for an id that is missing, unknown or there twice."""
        ids = [item.get("id") for item in items]
        whole = [key for key in ids if isinstance(key, int) and not isinstance(key, bool)]
        known = self.get_queryset().in_bulk(whole)  # type: ignore[attr-defined]
        errors: list[dict[str, Any]] = [{} for _ in items]
        for at, key in enumerate(ids):
            if isinstance(key, bool) or not isinstance(key, int):
                errors[at] = {"id": ["Each item needs the id of a record."]}
            elif ids.index(key) != at:
                errors[at] = {"id": [f"The id {key} stands twice."]}
            elif key not in known:
                errors[at] = {"id": [f"There is no record {key}."]}
        if any(errors):
            raise ValidationError(errors)
        return [(known[item["id"]], item) for item in items]

    def _checked(self, pairs: list[tuple[Any, Any]], *, partial: bool) -> list[BaseSerializer]:
        """A valid serializer for each item; raises ValidationError with every fault of all items."""
        found = [self.get_serializer(record, data=item, partial=partial) for record, item in pairs]  # type: ignore[attr-defined]
        valid = [serializer.is_valid() for serializer in found]
        if not all(valid):
            raise ValidationError([serializer.errors for serializer in found])
        return found

    @staticmethod
    def _each(items: list[Any], act: Callable[[Any], Any]) -> list[Any]:
        made = []
        for at, item in enumerate(items):
            with _at(at):
                made.append(act(item))
        return made

    def _shown_many(self, records: list[Any]) -> Any:
        fresh = self.get_queryset().in_bulk([record.pk for record in records])  # type: ignore[attr-defined]
        return self.get_serializer([fresh[record.pk] for record in records], many=True).data  # type: ignore[attr-defined]


def _items(request: Request) -> list[Any]:
    data = request.data
    if not isinstance(data, list) or not data:
        raise ValidationError("The body must be a list of at least one item.")
    if len(data) > MAX_BULK:
        raise ValidationError(f"The list has {len(data):,} items; at most {MAX_BULK} are taken at once. Split it.")
    if not all(isinstance(item, dict) for item in data):
        raise ValidationError("Each item of the list must be an object.")
    return data


@contextmanager
def _at(index: int) -> Iterator[None]:
    """Say at which item of a list a service refused."""
    try:
        yield
    except DjangoValidationError as error:
        found = error.message_dict if hasattr(error, "error_dict") else {"non_field_errors": error.messages}
        raise ValidationError([{}] * index + [found]) from error


class RecordViewSet(BulkMixin, ReadViewSet):
    """Everything: list, show, create, change, delete, and all of it in bulk."""


def accepted(job: Any, data: Any, *links: models.Model) -> Response:
    """202 with the Location of the job that does the work; ``links`` are the records it is about."""
    response = Response(data, status=status.HTTP_202_ACCEPTED)
    response["Location"] = path_to("job-detail", job.pk)
    paths = [path_to(f"{link._meta.model_name}-detail", link.pk) for link in links]
    if paths:
        response["Link"] = ", ".join(f'<{path}>; rel="related"' for path in paths)
    return response
