"""Filters of the lists. A parameter that no filter knows is refused: a misspelt one must not answer everything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import django_filters as df
from django.db import models
from django.db.models import QuerySet
from django_filters.rest_framework import DjangoFilterBackend
from drf_spectacular.utils import extend_schema_field
from rest_framework.exceptions import ValidationError
from rest_framework.filters import OrderingFilter
from rest_framework.request import Request

GENERAL = ("search", "ordering", "limit", "offset", "brief", "fields", "format")


class IdIn(df.BaseInFilter, df.NumberFilter):
    """Ids separated by commas."""


class UuidIn(df.BaseInFilter, df.UUIDFilter):
    """UUIDs separated by commas."""


@extend_schema_field({"type": "array", "items": {"type": "string"}})
class ByKey(df.ModelMultipleChoiceFilter):
    """Another record by its natural key; several may be given."""


class RecordFilter(df.FilterSet):
    """Filters by field; times with ``__gte`` and ``__lt``."""


def by(key: str, queryset: Any, field: str | None = None) -> ByKey:
    """A filter by another record's natural key; several may be given."""
    return ByKey(queryset=queryset, to_field_name=key, field_name=field)


def choices(values: type[models.TextChoices] | Any) -> df.MultipleChoiceFilter:
    """A filter by one or more of some choices."""
    return df.MultipleChoiceFilter(choices=getattr(values, "choices", values))


def filters_of(model: type[models.Model], fields: dict[str, list[str]], **declared: Any) -> type[RecordFilter]:
    """A filter class: ``fields`` with their lookups, ``declared`` filters, the id, and the times a record has."""
    times = [name for name in ("created_at", "updated_at") if hasattr(model, name)]
    lookups = {**fields, **{name: ["gte", "lt"] for name in times}}
    is_uuid = isinstance(model._meta.pk, models.UUIDField)
    meta = type("Meta", (), {"model": model, "fields": lookups})
    for name, declared_filter in declared.items():
        if isinstance(declared_filter, ByKey):
            key = declared_filter.extra["to_field_name"]
            declared_filter.field_name = f"{declared_filter.field_name or name}__{key}"
    members = {"id": (UuidIn if is_uuid else IdIn)(field_name="id"), **declared, "Meta": meta}
    return type(f"{model.__name__}Filter", (RecordFilter,), {**members, "__doc__": f"Filters of {model.__name__}."})


def refuse_unknown(request: Request, known: Iterable[str]) -> None:
    """Raise ValidationError naming the first parameter of the query that is not ``known``."""
    names = sorted(known)
    for name in request.query_params:
        if name not in names:
            message = f"There is no such parameter; known: {', '.join(names) or 'none'}."
            raise ValidationError({name[:60]: [message]}, code="unknown")


class StrictFilter(DjangoFilterBackend):
    """The filters of a view, and nothing else."""

    def filter_queryset(self, request: Request, queryset: QuerySet, view: Any) -> QuerySet:
        """Filtered rows; raises ValidationError naming an unknown parameter."""
        filters = self.get_filterset_class(view, queryset)
        refuse_unknown(request, {*GENERAL, *(filters.base_filters if filters else ())})
        return super().filter_queryset(request, queryset, view)


class StrictOrdering(OrderingFilter):
    """``ordering=field`` or ``-field``, several separated by commas; an unknown field is refused."""

    def remove_invalid_fields(
        self, queryset: QuerySet, fields: Iterable[str], view: Any, request: Request
    ) -> list[str]:
        """All of them; raises ValidationError for one that cannot be ordered by."""
        known = [item[0] for item in self.get_valid_fields(queryset, view, {"request": request})]
        wanted = list(fields)
        for name in wanted:
            if name.removeprefix("-") not in known:
                raise ValidationError({"ordering": f"{name[:60]!r} is not known; use one of: {', '.join(known)}."})
        return wanted

    def filter_queryset(self, request: Request, queryset: QuerySet, view: Any) -> QuerySet:
        """Ordered rows, the id last so that pages do not overlap."""
        ordering = self.get_ordering(request, queryset, view)
        return queryset.order_by(*ordering, "pk") if ordering else queryset
