"""Application configuration."""

from django.apps import AppConfig


class WorkloadsConfig(AppConfig):
    """What has to be served: models, traces, loads and objectives."""

    name = "controlplane.workloads"
    label = "workloads"
    verbose_name = "Workloads"
    default_auto_field = "django.db.models.BigAutoField"
