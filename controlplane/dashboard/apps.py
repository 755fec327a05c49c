"""Application configuration."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    """The web pages."""

    name = "controlplane.dashboard"
    label = "dashboard"
    verbose_name = "Dashboard"
    default_auto_field = "django.db.models.BigAutoField"
