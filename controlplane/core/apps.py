"""Application configuration."""

from django.apps import AppConfig


class CoreConfig(AppConfig):
    """Base models, users and roles, tokens, change log."""

    name = "controlplane.core"
    label = "core"
    verbose_name = "Access and changes"
    default_auto_field = "django.db.models.BigAutoField"
