"""Users, roles at sites, tokens, the change log."""

from __future__ import annotations

from rest_framework import serializers

from controlplane.api.serializers.base import RecordField, RecordSerializer, Strict, record_meta, username
from controlplane.core.models import ApiToken, ChangeLog, SiteRole, User
from controlplane.inventory.models import Site


class UserSerializer(RecordSerializer):
    """A person or a machine account. ``password`` is only ever taken."""

    password = serializers.CharField(write_only=True, required=False, max_length=128, trim_whitespace=False)

    Meta = record_meta(
        User,
        "username email first_name last_name role is_active is_staff password last_login date_joined",
        brief="username role",
        read_only="last_login date_joined",
    )


class MeSerializer(serializers.ModelSerializer):
    """Who asks."""

    site_roles = serializers.DictField(child=serializers.CharField(), help_text="Roles at sites, by slug.")
    token = serializers.CharField(allow_null=True, help_text="Name of the token that was used; null in a browser.")
    read_only = serializers.BooleanField(help_text="Whether that token only reads.")  # type: ignore[assignment]

    class Meta:
        model = User
        fields = ("id", "username", "role", "is_superuser", "site_roles", "token", "read_only")


class SiteRoleSerializer(RecordSerializer):
    """A role that a user has at one site."""

    user = RecordField("username", queryset=User.objects.all())
    site = RecordField(queryset=Site.objects.all())

    Meta = record_meta(SiteRole, "user site role", brief="user site role")


class TokenSerializer(RecordSerializer):
    """An API token, without the token itself."""

    user = RecordField("username", queryset=User.objects.all(), required=False, help_text="Default: yourself.")
    networks = serializers.ListField(child=serializers.CharField(max_length=50), required=False, max_length=32)

    Meta = record_meta(
        ApiToken,
        "user name prefix expires_at networks read_only last_used_at revoked_at",
        brief="user name prefix",
        read_only="prefix last_used_at revoked_at",
    )


class NewTokenSerializer(TokenSerializer):
    """A token just made."""

    token = serializers.CharField(read_only=True, help_text="Shown this once; keep it safe.")

    Meta = record_meta(
        ApiToken,
        "user name prefix token expires_at networks read_only last_used_at revoked_at",
        brief="user name prefix",
        read_only="prefix token last_used_at revoked_at",
    )


class ProvisionSerializer(Strict):
    """A user's own name and password, and the token to make."""

    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=128, trim_whitespace=False)
    name = serializers.CharField(max_length=100)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    networks = serializers.ListField(child=serializers.CharField(max_length=50), required=False, max_length=32)
    read_only = serializers.BooleanField(required=False, default=False)  # type: ignore[assignment]


class ChangeSerializer(RecordSerializer):
    """Who changed what, when, from what, to what."""

    actor = username()

    Meta = record_meta(
        ChangeLog,
        "at actor actor_name action model object_id object_repr before after request_id",
        brief="at actor_name action model object_repr",
        read_only="at actor_name action model object_id object_repr before after request_id",
    )
