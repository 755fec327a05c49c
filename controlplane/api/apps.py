"""Application configuration."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    """The REST API."""

    name = "controlplane.api"
    label = "api"
    verbose_name = "API"
    default_auto_field = "django.db.models.BigAutoField"
