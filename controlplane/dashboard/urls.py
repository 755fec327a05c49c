"""Routes of the web pages."""

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, URLResolver, path

from controlplane.dashboard.views import deployments, fleet, home, jobs, plans, workloads

app_name = "dashboard"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", home.home, name="home"),
    path("login/", home.SignIn.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("help/", home.help_page, name="help"),
    path("rules/", home.rules, name="rules"),
    path("fleet/", fleet.fleet, name="fleet"),
    path("fleet/nodes/", fleet.nodes, name="nodes"),
    path("fleet/nodes/<slug:slug>/", fleet.node, name="node"),
    path("fleet/nodes/<slug:slug>/discover/", fleet.discover, name="discover"),
    path("fleet/prices/", fleet.prices, name="prices"),
    path("fleet/discovered/", fleet.discovered, name="discovered"),
    path("workloads/", workloads.workloads, name="workloads"),
    path("workloads/new/", workloads.edit, name="workload_new"),
    path("workloads/draw/", workloads.draw, name="workload_draw"),
    path("workloads/models/add/", workloads.upload_model, name="model_upload"),
    path("workloads/models/<path:model_id>/", workloads.model, name="model"),
    path("workloads/<slug:slug>/", workloads.workload, name="workload"),
    path("workloads/<slug:slug>/edit/", workloads.edit, name="workload_edit"),
    path("workloads/<slug:slug>/delete/", workloads.delete, name="workload_delete"),
    path("memory/", workloads.memory, name="memory"),
    path("plans/", plans.plans, name="plans"),
    path("plans/new/", plans.scenario, name="scenario_new"),
    path("plans/compare/", plans.compare, name="compare"),
    path("plans/scenarios/<slug:slug>/", plans.scenario, name="scenario"),
    path("plans/scenarios/<slug:slug>/compute/", plans.compute, name="compute"),
    path("plans/<int:pk>/", plans.plan, name="plan"),
    path("plans/<int:pk>/approve/", plans.approve, name="approve"),
    path("plans/<int:pk>/router.yaml", plans.router, name="router"),
    path("plans/<int:pk>/workloads/<str:name>/", plans.plan_workload, name="plan_workload"),
    path("plans/<int:pk>/workloads/<str:name>/curves/", plans.plan_curves, name="plan_curves"),
    path("plans/<int:pk>/nodes/<str:name>/", plans.plan_node, name="plan_node"),
    path("deployments/", deployments.deployments, name="deployments"),
    path("deployments/new/", deployments.create, name="deployment_new"),
    path("deployments/<uuid:pk>/", deployments.deployment, name="deployment"),
    path("deployments/<uuid:pk>/launch/", deployments.launch, name="launch"),
    path("deployments/<uuid:pk>/probe/", deployments.probe, name="probe"),
    path("deployments/<uuid:pk>/stop/", deployments.stop, name="stop"),
    path("validation/", deployments.validation, name="validation"),
    path("validation/calibrations/<int:pk>/", deployments.set_calibration, name="set_calibration"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/<uuid:pk>/", jobs.job, name="job"),
    path("jobs/<uuid:pk>/progress/", jobs.progress, name="job_progress"),
    path("jobs/<uuid:pk>/cancel/", jobs.cancel, name="job_cancel"),
    path("jobs/<uuid:pk>/retry/", jobs.retry, name="job_retry"),
]
