from typing import Any

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import OuterRef, Subquery


def take_deployment_of_probe(apps: Any, schema_editor: Any) -> None:
    """Fill the new column from the probe that each row has."""
    validation = apps.get_model("deployments", "Validation")
    probe = apps.get_model("deployments", "ProbeRun")
    owner = probe.objects.filter(pk=OuterRef("probe_id")).values("deployment_id")[:1]
    validation.objects.using(schema_editor.connection.alias).update(deployment_id=Subquery(owner))


class Migration(migrations.Migration):
    dependencies = [("deployments", "0002_parts")]

    operations = [
        migrations.AddField(
            model_name="validation",
            name="deployment",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="validations",
                to="deployments.deployment",
            ),
        ),
        migrations.RunPython(take_deployment_of_probe, migrations.RunPython.noop),
        migrations.AlterField(
            model_name="validation",
            name="deployment",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="validations",
                to="deployments.deployment",
            ),
        ),
        migrations.AlterField(
            model_name="validation",
            name="probe",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="validations",
                to="deployments.proberun",
            ),
        ),
        migrations.AddConstraint(
            model_name="validation",
            constraint=models.UniqueConstraint(
                condition=models.Q(("probe__isnull", True)),
                fields=("deployment", "metric"),
                name="deployments_validation_startup_once",
            ),
        ),
    ]
