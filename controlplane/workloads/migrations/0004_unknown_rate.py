from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def forget_zeros(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """A rate of 0 stood for none."""
    apps.get_model("workloads", "Trace").objects.filter(mean_rate_per_s=0).update(mean_rate_per_s=None)


def write_zeros(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """The way back."""
    apps.get_model("workloads", "Trace").objects.filter(mean_rate_per_s=None).update(mean_rate_per_s=0)


class Migration(migrations.Migration):

    dependencies = [
        ('workloads', '0003_weight_bytes'),
    ]

    operations = [
        migrations.AlterField(
            model_name='trace',
            name='mean_rate_per_s',
            field=models.FloatField(editable=False, help_text='Requests per second; null for a trace that spans no time.', null=True),
        ),
        migrations.RunPython(forget_zeros, write_zeros),
    ]
