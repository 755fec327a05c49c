"""Application configuration."""

from django.apps import AppConfig


class DeploymentsConfig(AppConfig):
    """Engines that run, their probes, and how true the predictions were."""

    name = "controlplane.deployments"
    label = "deployments"
    verbose_name = "Deployments"
    default_auto_field = "django.db.models.BigAutoField"
