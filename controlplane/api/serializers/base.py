"""What serializers share: natural keys, choices that are named, unknown fields refused, ``brief`` and ``fields``."""

from __future__ import annotations

from typing import Any

from django.db import models
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

KNOWN_SHOWN = 6


class KnownChoiceField(serializers.ChoiceField):
    """A choice whose error names the choices."""

    def fail(self, key: str, **kwargs: Any) -> Any:
        """Name them."""
        if key == "invalid_choice":
            known = ", ".join(map(str, self.choices))
            message = f"{str(kwargs.get('input'))[:60]!r} is not known; use one of: {known}."
            raise serializers.ValidationError(message, code=key)
        return super().fail(key, **kwargs)


@extend_schema_field({"oneOf": [{"type": "string"}, {"type": "integer"}], "description": "Natural key; or id."})
class RecordField(serializers.RelatedField):
    """Another record by its natural key (slug, name); its id is understood too. Shown as the natural key."""

    def __init__(self, key: str = "slug", **kwargs: Any) -> None:
        self.key = key
        super().__init__(**kwargs)

    def use_pk_only_optimization(self) -> bool:
        """The natural key is shown, so the record is needed."""
        return False

    def to_internal_value(self, data: Any) -> models.Model:
        """The record; the error names some that exist."""
        queryset: Any = self.get_queryset()
        if isinstance(data, bool) or not isinstance(data, (int, str)):
            raise serializers.ValidationError(f"Must be a {self.key} or an id.", code="invalid")
        lookup = {"pk": data} if isinstance(data, int) else {self.key: data}
        found = queryset.filter(**lookup).first()
        if found is None:
            known = ", ".join(map(str, queryset.values_list(self.key, flat=True)[:KNOWN_SHOWN])) or "none yet"
            name = queryset.model._meta.verbose_name
            raise serializers.ValidationError(
                f"There is no {name} {str(data)[:60]!r}; known: {known}.", "does_not_exist"
            )
        return found

    def to_representation(self, value: Any) -> str:
        """The natural key."""
        return str(getattr(value, self.key))

    def get_choices(self, cutoff: int | None = None) -> dict[Any, Any]:
        """None are listed."""
        return {}


class Strict(serializers.Serializer):
    """Refuses a field that it does not know; one that is only ever read may be sent back and is left alone."""

    def to_internal_value(self, data: Any) -> Any:
        """Validated values; every fault at once."""
        faults: dict[str, Any] = {}
        if isinstance(data, dict):
            known = ", ".join(name for name, field in self.fields.items() if not field.read_only)
            for name in data:
                if name not in self.fields:
                    message = f"There is no such field; known: {known}."
                    faults[str(name)[:60]] = [serializers.ErrorDetail(message, "unknown")]
            faults |= self._left_out(data)
        try:
            values = super().to_internal_value(data)
        except serializers.ValidationError as error:
            if not faults:
                raise
            detail: Any = error.detail
            raise serializers.ValidationError({**detail, **faults}) from error
        if faults:
            raise serializers.ValidationError(faults)
        return values

    def _left_out(self, data: dict[str, Any]) -> dict[str, Any]:
        """Faults of an entry of a list in a record: the list is replaced, so that a PATCH takes no part of an entry."""
        within = isinstance(self.parent, serializers.ListSerializer) and self.parent is not self.root
        if not (within and getattr(self.root, "partial", False)):
            return {}
        missing = [name for name, field in self.fields.items() if field.required and name not in data]
        return {name: [serializers.ErrorDetail("This field is required.", "required")] for name in missing}


class RecordSerializer(Strict, serializers.ModelSerializer):
    """A record. ``Meta.brief_fields`` are those of ``?brief=true``; ``Meta.detail_only`` are left out of lists.

    Rules live in ``Model.clean`` and the services, so uniqueness over several fields is not checked here again.
    """

    serializer_choice_field = KnownChoiceField

    Meta: Any

    def get_fields(self) -> dict[str, Any]:
        """All fields, or those that the request chose."""
        fields = super().get_fields()
        outer = self.parent.parent if isinstance(self.parent, serializers.ListSerializer) else self.parent
        only = self.context.get("only") if outer is None else None
        return fields if only is None else {name: field for name, field in fields.items() if name in only}

    def get_validators(self) -> list[Any]:
        """None: ``full_clean`` does it."""
        return []


def record_meta(
    model: type[models.Model],
    fields: str,
    *,
    brief: str,
    read_only: str = "",
    detail_only: str = "",
    **extra: Any,
) -> Any:
    """A ``Meta`` with the columns that every record has around its own ``fields`` (names separated by blanks)."""
    versioned = [name for name in ("version", "created_at", "updated_at") if hasattr(model, name)]
    names = ["id", *fields.split(), *versioned]
    values = {
        "model": model,
        "fields": names,
        "brief_fields": ("id", *brief.split()),
        "detail_only": tuple(detail_only.split()),
        "read_only_fields": tuple(dict.fromkeys(["id", *versioned, *read_only.split(), *detail_only.split()])),
        **extra,
    }
    return type("Meta", (), values)


def username() -> serializers.SlugRelatedField:
    """A user by name, only shown."""
    return serializers.SlugRelatedField(slug_field="username", read_only=True, allow_null=True)


@extend_schema_field(OpenApiTypes.OBJECT)
class ObjectField(serializers.JSONField):
    """A JSON object."""

    def to_internal_value(self, data: Any) -> Any:
        """The object."""
        if not isinstance(data, dict):
            raise serializers.ValidationError("Must be a JSON object.", code="invalid")
        return super().to_internal_value(data)
