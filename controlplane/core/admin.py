"""Users, tokens and the change log in the admin console, and what every other admin builds on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelect
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.http import HttpRequest
from import_export.admin import ImportExportModelAdmin
from import_export.formats.base_formats import CSV, XLSX

from controlplane.core import access
from controlplane.core.models import ApiToken, ChangeLog, Role, SiteRole, User
from controlplane.core.services import delete_record, save_record

admin.site.unregister(Group)  # roles are what counts here


class KnownChoice(AutocompleteSelect):
    """A related record found while typing; what is no key of any is refused by the field, not by the database."""

    def optgroups(self, name: str, value: Sequence[str], attr: Any = None) -> Any:
        """The chosen records; keys that cannot be any are left out."""
        return super().optgroups(name, [key for key in value if self._may_be(key)], attr)

    def _may_be(self, key: str) -> bool:
        try:
            found = self.field.remote_field.model._meta.pk.to_python(key) if key else None
        except ValidationError:
            return False
        return not isinstance(found, int) or abs(found) < 2**63


class RecordAdmin(admin.ModelAdmin):
    """Changes go the way of every other change: checked, logged, by role. Inlines too."""

    minimum_role: Role = Role.OPERATOR

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Related records that are found while typing."""
        if "widget" not in kwargs and db_field.name in self.get_autocomplete_fields(request):
            kwargs["widget"] = KnownChoice(db_field, self.admin_site, using=kwargs.get("using"))
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: models.Model, form: Any, change: bool) -> None:
        """Store one record."""
        self.store(request, obj)

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        """Store the records of an inline."""
        for record in formset.save(commit=False):
            save_record(record, actor=_user(request))
        for record in formset.deleted_objects:
            delete_record(record, actor=_user(request))
        formset.save_m2m()

    def delete_model(self, request: HttpRequest, obj: models.Model) -> None:
        """Delete one record."""
        delete_record(obj, actor=_user(request))

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet) -> None:
        """Delete the chosen records one by one, so that each is logged."""
        for record in queryset:
            delete_record(record, actor=_user(request))

    def store(self, request: HttpRequest, obj: models.Model) -> None:
        """Save in the name of the user."""
        save_record(obj, actor=_user(request))

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Staff may look."""
        return request.user.is_active and request.user.is_staff

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Staff may look."""
        return request.user.is_active and request.user.is_staff

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """By role."""
        return self._may(request)

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """By role."""
        return self._may(request)

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """By role."""
        return self._may(request)

    def _may(self, request: HttpRequest) -> bool:
        return request.user.is_staff and access.has_role(request.user, self.minimum_role)


class TableAdmin(ImportExportModelAdmin, RecordAdmin):
    """A record admin with import and export of CSV and XLSX; a file is taken wholly or not at all."""

    formats = (CSV, XLSX)
    skip_admin_log = True

    def get_import_data_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        """One wrong row refuses the file."""
        return {**super().get_import_data_kwargs(**kwargs), "rollback_on_validation_errors": True}

    def has_import_permission(self, request: HttpRequest) -> bool:
        """By role."""
        return self._may(request)

    def has_export_permission(self, request: HttpRequest) -> bool:
        """Whoever may look may take it away."""
        return self.has_view_permission(request)


class ReadOnlyAdmin(RecordAdmin):
    """Something that is only ever looked at here."""

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody."""
        return False


class ReadOnlyInline(admin.TabularInline):
    """Related rows, only to look at."""

    extra = 0
    can_delete = False
    show_change_link = True

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Whoever sees the page."""
        return True

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Nobody."""
        return False


class EditableInline(admin.TabularInline):
    """Related rows, edited by those who may edit the page."""

    extra = 0

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Whoever sees the page."""
        return True

    def has_add_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """As the page."""
        return access.has_role(request.user, Role.OPERATOR)

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """As the page."""
        return access.has_role(request.user, Role.OPERATOR)

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """As the page."""
        return access.has_role(request.user, Role.OPERATOR)


class SiteRoleInline(EditableInline):
    """Roles at single sites."""

    model = SiteRole
    fields = ("site", "role")


@admin.register(User)
class UserAdmin(DjangoUserAdmin):
    """People and machine accounts; administrators only."""

    list_display = ("username", "role", "email", "is_active", "is_staff", "last_login")
    list_filter = ("role", "is_active", "is_staff")
    inlines = (SiteRoleInline,)
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("Rights", {"fields": ("role", "is_active", "is_staff", "is_superuser")}),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )
    add_fieldsets = (
        (None, {"classes": ("wide",), "fields": ("username", "usable_password", "password1", "password2", "role")}),
    )

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Administrators."""
        return access.has_role(request.user, Role.ADMIN)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Administrators."""
        return access.has_role(request.user, Role.ADMIN)

    has_add_permission = has_change_permission = has_delete_permission = has_view_permission

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        """Store one user, logged."""
        save_record(obj, actor=_user(request))

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:
        """Store the roles at sites, logged."""
        for record in formset.save(commit=False):
            save_record(record, actor=_user(request))
        for record in formset.deleted_objects:
            delete_record(record, actor=_user(request))


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnlyAdmin):
    """Tokens, without the tokens: they are made where they can be shown once, over the API or the command line."""

    list_display = ("name", "user", "prefix", "read_only", "expires_at", "last_used_at", "revoked_at")
    list_filter = ("read_only", "user")
    search_fields = ("name", "prefix", "user__username")
    exclude = ("digest",)
    actions = ("revoke",)

    @admin.action(description="Revoke the chosen tokens")
    def revoke(self, request: HttpRequest, queryset: models.QuerySet[ApiToken]) -> None:
        """End them at once."""
        from controlplane.core.tokens import revoke_token

        for token in queryset:
            try:
                revoke_token(actor=_user(request), token=token)
            except PermissionDenied as error:
                self.message_user(request, str(error), level="error")


@admin.register(ChangeLog)
class ChangeLogAdmin(ReadOnlyAdmin):
    """Who changed what."""

    list_display = ("at", "actor_name", "action", "model", "object_repr")
    list_filter = ("action", "model")
    search_fields = ("object_repr", "actor_name", "object_id", "request_id")
    date_hierarchy = "at"


def _user(request: HttpRequest) -> User:
    if not isinstance(request.user, User):
        raise PermissionDenied("You are not logged in.")
    return request.user


def guarded(act: Any, request: HttpRequest, model_admin: admin.ModelAdmin, *args: Any, **kwargs: Any) -> None:
    """Run a service for an admin action and show why it was refused."""
    try:
        act(*args, actor=_user(request), **kwargs)
    except (ValidationError, PermissionDenied) as error:
        text = " ".join(error.messages) if isinstance(error, ValidationError) else str(error)
        model_admin.message_user(request, text, level="error")
