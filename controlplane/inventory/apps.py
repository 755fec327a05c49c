"""Application configuration."""

from django.apps import AppConfig


class InventoryConfig(AppConfig):
    """Sites, nodes, GPUs and prices."""

    name = "controlplane.inventory"
    label = "inventory"
    verbose_name = "Inventory"
    default_auto_field = "django.db.models.BigAutoField"
