"""Application configuration."""

from django.apps import AppConfig


class PlanningConfig(AppConfig):
    """Scenarios and the plans computed for them."""

    name = "controlplane.planning"
    label = "planning"
    verbose_name = "Planning"
    default_auto_field = "django.db.models.BigAutoField"
