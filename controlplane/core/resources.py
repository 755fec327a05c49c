"""Import and export of records: validated like any other change, logged, refused as a whole when a row is wrong."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

import tablib
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from import_export import resources, widgets

from controlplane.core import access
from controlplane.core.access import Actor
from controlplane.core.models import Role
from controlplane.core.services import save_record
from controlplane.core.tables import RowProblem, TableError, as_typed, inert, read_table


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What a file did."""

    created: int
    updated: int
    unchanged: int
    dry_run: bool


class NamedForeignKey(widgets.ForeignKeyWidget):
    """A foreign key by slug or name; an unknown one is named with what exists. Each is looked up once an import."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: dict[Any, models.Model] = {}

    def clean(self, value: Any, row: Any = None, **kwargs: Any) -> models.Model | None:
        """The record; raises ValueError naming the known ones."""
        if value in (None, ""):
            return None
        if value in self.seen:
            return self.seen[value]
        found = self.model.objects.filter(**{self.field: value}).first()
        if found is None:
            known = list(self.model.objects.values_list(self.field, flat=True)[:6])
            shown = ", ".join(map(str, known)) or "none yet"
            raise ValueError(f"there is no {self.model._meta.verbose_name} {value!r}; known: {shown}")
        self.seen[value] = found
        return found


class FiniteFloat(widgets.FloatWidget):
    """A finite number."""

    def clean(self, value: Any, row: Any = None, **kwargs: Any) -> float | None:
        """The number; raises ValueError for anything else."""
        if value in (None, ""):
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError("it must be a number with a decimal point and no unit") from None
        if not math.isfinite(number):
            raise ValueError("it must be a finite number")
        return number


class StrictDecimal(widgets.DecimalWidget):
    """An exact number."""

    def clean(self, value: Any, row: Any = None, **kwargs: Any) -> Decimal | None:
        """The number; raises ValueError for anything else."""
        if value in (None, ""):
            return None
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            raise ValueError("it must be a number with a decimal point and no unit") from None
        if not number.is_finite():
            raise ValueError("it must be a finite number")
        return number


class StrictInteger(widgets.IntegerWidget):
    """A whole number."""

    def clean(self, value: Any, row: Any = None, **kwargs: Any) -> int | None:
        """The number; raises ValueError for anything else."""
        if value in (None, ""):
            return None
        text = str(value)
        if len(text) > 20 or not text.removeprefix("-").isdecimal():
            raise ValueError("it must be a whole number without a unit")
        return int(text)


class IsoDate(widgets.DateWidget):
    """A day."""

    def clean(self, value: Any, row: Any = None, **kwargs: Any) -> dt.date | None:
        """The day; raises ValueError for anything else."""
        if value in (None, ""):
            return None
        if isinstance(value, dt.date):
            return value
        try:
            return dt.date.fromisoformat(str(value))
        except ValueError:
            raise ValueError("it must be a date like 2026-05-31") from None


class TextList(widgets.Widget):
    """A list as JSON or as words separated by semicolons."""

    def clean(self, value: Any, row: Any = None, **kwargs: Any) -> list[str] | None:
        """The list; None when the cell is empty."""
        text = str(value or "").strip()
        if not text:
            return None
        if text.startswith("["):
            try:
                return json.loads(text)
            except (ValueError, RecursionError):
                raise ValueError("it is no JSON list; separate the words with semicolons") from None
        return [word.strip() for word in text.split(";") if word.strip()]

    def render(self, value: Any, obj: Any = None, **kwargs: Any) -> str:
        """Words separated by semicolons."""
        return ";".join(value or [])


class RecordResource(resources.ModelResource):
    """A resource whose rows pass ``save_record``. Meta.import_id_fields tell what a record is."""

    WIDGETS_MAP: ClassVar[dict] = {
        **resources.ModelResource.WIDGETS_MAP,
        "FloatField": FiniteFloat,
        "DecimalField": StrictDecimal,
        "DateField": IsoDate,
        "PositiveIntegerField": StrictInteger,
        "PositiveSmallIntegerField": StrictInteger,
    }

    def before_import(self, dataset: tablib.Dataset, **kwargs: Any) -> None:
        """Refuse unknown columns and a record that stands twice."""
        known = {field.column_name for field in self.get_import_fields()}
        unknown = [header for header in dataset.headers if header not in known]
        if unknown:
            raise ValidationError(f"Unknown column {unknown[0]!r}; known: {', '.join(sorted(known))}.")
        seen: dict[tuple, int] = {}
        keys = [name for name in self._meta.import_id_fields if name in dataset.headers]
        for number, row in enumerate(dataset.dict, 2):
            key = tuple(str(row[name]) for name in keys)
            if keys and key in seen:
                raise ValidationError(
                    f"Rows {seen[key]} and {number} are the same {' + '.join(keys)}: {', '.join(key)}."
                )
            seen[key] = number
        for field in self.get_import_fields():
            if isinstance(field.widget, NamedForeignKey):
                field.widget.seen.clear()

    def before_import_row(self, row: Any, **kwargs: Any) -> None:
        """Cells that an export kept from being formulas are what they were."""
        row.update({name: as_typed(cell) for name, cell in row.items()})

    def export_field(self, field: Any, instance: models.Model, **kwargs: Any) -> Any:
        """One cell, which no spreadsheet takes for a formula."""
        return inert(super().export_field(field, instance, **kwargs))

    def save_instance(self, instance: models.Model, is_create: bool, row: Any, **kwargs: Any) -> None:
        """Store one row as any other change, in the name of ``user``."""
        actor = kwargs.get("user")
        stored = None if is_create else type(instance)._default_manager.filter(pk=instance.pk).first()
        for record in filter(None, (stored, instance)):  # where it was, and where it goes
            self.check_access(actor, record)
        save_record(instance, actor=actor, checked=True)  # clean_model_instances has checked it
        self.after_save_instance(instance, row, is_create=is_create, **kwargs)

    def check_access(self, actor: Actor, instance: models.Model) -> None:
        """Raise PermissionDenied unless ``actor`` may change this record."""
        access.require(actor, Role.OPERATOR, getattr(instance, "site", None))

    class Meta:
        clean_model_instances = True
        skip_unchanged = True
        report_skipped = True
        use_transactions = True


def import_table(
    resource: RecordResource, *, actor: Actor, name: str, content: bytes, dry_run: bool = False
) -> ImportReport:
    """Import a whole file, or nothing of it; raises TableError with every fault, PermissionDenied."""
    dataset = read_table(name, content)
    result = resource.import_data(
        dataset, dry_run=dry_run, user=actor, use_transactions=True, rollback_on_validation_errors=True
    )
    problems = _problems(result, dataset)
    if problems:
        raise TableError(problems)
    totals = result.totals
    return ImportReport(created=totals["new"], updated=totals["update"], unchanged=totals["skip"], dry_run=dry_run)


def _problems(result: Any, dataset: tablib.Dataset) -> list[RowProblem]:
    """Faults of an import, in the order of the rows."""
    found = [RowProblem(0, "", "", " ".join(_messages(item.error))) for item in result.base_errors]
    for row in result.invalid_rows:
        for field, messages in row.error_dict.items():
            column = "" if field == "__all__" else field
            value = _value(dataset, row.number, column)
            found.append(RowProblem(row.number + 1, column, value, " ".join(map(str, messages))))
    for row in result.error_rows:
        for item in row.errors:
            if isinstance(item.error, PermissionDenied):
                raise item.error
            found.append(RowProblem(row.number + 1, "", "", " ".join(_messages(item.error))))
    return sorted(found, key=lambda problem: problem.row)


def _messages(error: BaseException) -> list[str]:
    return list(error.messages) if isinstance(error, ValidationError) else [f"{error}" or type(error).__name__]


def _value(dataset: tablib.Dataset, number: int, column: str) -> str:
    if column not in (dataset.headers or []):
        return ""
    return str(dataset[number - 1][dataset.headers.index(column)])[:80]
