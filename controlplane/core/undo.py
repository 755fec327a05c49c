"""Keep what a deletion takes away, and put it back: the record, the rows that go with it, and what pointed at it."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core import serializers
from django.core.exceptions import ValidationError
from django.db import models, transaction

from controlplane.core.access import Actor
from controlplane.core.services import save_record

Kept = dict[str, Any]


def keep(record: models.Model) -> Kept:
    """Everything that deleting ``record`` takes away, as JSON; call it before.

    Rows that are deleted with it (one level) are kept whole, of rows that only lose their reference the keys. Raises
    ValueError for a record whose dependent rows have dependent rows themselves, for they would be lost.
    """
    owned: list[models.Model] = []
    pointing: list[list[Any]] = []
    for relation in record._meta.related_objects:
        name = relation.field.name
        rows = relation.related_model._base_manager.filter(**{name: record})
        if relation.many_to_many or relation.on_delete is models.SET_NULL:
            pointing.append([relation.related_model._meta.label, name, list(rows.values_list("pk", flat=True))])
        elif relation.on_delete is models.CASCADE:
            if relation.related_model._meta.related_objects:
                raise ValueError(f"{relation.related_model._meta.label} has dependent rows of its own")
            owned += rows
    text = serializers.serialize("json", [record, *owned])
    return {"text": text, "pointing": [[label, name, [str(key) for key in keys]] for label, name, keys in pointing]}


def put_back(kept: Kept, *, actor: Actor) -> models.Model:
    """Store what ``keep`` kept, under its old keys. The caller checks the role.

    Raises ValidationError when it is there again, its name was taken, or what it refers to is gone.
    """
    with transaction.atomic():
        first, *owned = [found.object for found in serializers.deserialize("json", kept["text"])]
        if type(first)._base_manager.filter(pk=first.pk).exists():
            raise ValidationError(f"{first} is there already.")
        for row in (first, *owned):
            made = getattr(row, "created_at", None)
            try:
                save_record(row, actor=actor)
            except ValidationError as error:
                raise ValidationError(f"{first} cannot be put back: {' '.join(error.messages)}") from error
            if made is not None:
                type(row)._base_manager.filter(pk=row.pk).update(created_at=made)
        for label, name, keys in kept["pointing"]:
            rows = apps.get_model(label)._base_manager.filter(pk__in=keys)
            if rows.model._meta.get_field(name).many_to_many:
                for row in rows:
                    getattr(row, name).add(first)
            else:
                rows.filter(**{f"{name}__isnull": True}).update(**{name: first})
    return first
