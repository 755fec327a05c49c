"""Application configuration."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Long acts: the Job row is the truth, the message only a nudge."""

    name = "controlplane.jobs"
    label = "jobs"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Make every kind of job known."""
        from controlplane.jobs.kinds import load_kinds

        load_kinds()
