"""Routes of the REST API, below /api/. A closing slash may be left out."""

from __future__ import annotations

from django.urls import include, re_path
from rest_framework.routers import SimpleRouter

from controlplane.api.views import catalogue, core, deployments, docs, inventory, jobs, planner, planning, workloads

app_name = "api"

router = SimpleRouter()
router.trailing_slash = "/?"
for prefix, viewset, basename in (
    ("sites", inventory.SiteViewSet, "site"),
    ("gpu-models", inventory.GpuModelViewSet, "gpumodel"),
    ("node-types", inventory.NodeTypeViewSet, "nodetype"),
    ("nodes", inventory.NodeViewSet, "node"),
    ("gpus", inventory.GpuViewSet, "gpu"),
    ("prices", inventory.PriceViewSet, "price"),
    ("exchange-rates", inventory.ExchangeRateViewSet, "exchangerate"),
    ("traces", workloads.TraceViewSet, "trace"),
    ("models", workloads.LlmModelViewSet, "llmmodel"),
    ("workloads", workloads.WorkloadViewSet, "workload"),
    ("slo-targets", workloads.SloTargetViewSet, "slotarget"),
    ("scenarios", planning.ScenarioViewSet, "scenario"),
    ("plans", planning.PlanViewSet, "plan"),
    ("placements", planning.PlacementViewSet, "placementrow"),
    ("verdicts", planning.VerdictViewSet, "verdictrow"),
    ("deployments", deployments.DeploymentViewSet, "deployment"),
    ("endpoints", deployments.EndpointViewSet, "endpoint"),
    ("probes", deployments.ProbeViewSet, "proberun"),
    ("validations", deployments.ValidationViewSet, "validation"),
    ("calibrations", deployments.CalibrationViewSet, "calibration"),
    ("jobs", jobs.JobViewSet, "job"),
    ("users", core.UserViewSet, "user"),
    ("site-roles", core.SiteRoleViewSet, "siterole"),
    ("tokens", core.TokenViewSet, "apitoken"),
    ("changes", core.ChangeViewSet, "changelog"),
):
    router.register(prefix, viewset, basename=basename)

PLAIN = {
    "me": (r"me", core.MeView),
    "tokens-provision": (r"tokens/provision", core.ProvisionView),
    "estimate": (r"estimate", planner.EstimateView),
    "memory": (r"memory", planner.MemoryView),
    "catalogue-gpus": (r"catalogue/gpus", catalogue.GpusView),
    "catalogue-node-types": (r"catalogue/node-types", catalogue.NodeTypesView),
    "catalogue-prices": (r"catalogue/prices", catalogue.PricesView),
    "catalogue-models": (r"catalogue/models", catalogue.ModelsView),
    "catalogue-traces": (r"catalogue/traces", catalogue.TracesView),
}
"""Route name -> (path, view) of what is no record."""

v1 = [
    re_path(r"^$", docs.RootView.as_view(), name="root"),
    *[re_path(rf"^{path}/?$", view.as_view(), name=name) for name, (path, view) in PLAIN.items()],
    re_path(r"^catalogue/gpus/(?P<name>[^/]{1,100})/?$", catalogue.GpuView.as_view(), name="catalogue-gpu"),
    re_path(
        r"^catalogue/models/(?P<name>[^/]{1,100}(?:/[^/]{1,100})?)/?$",
        catalogue.ModelView.as_view(),
        name="catalogue-model",
    ),
    re_path(r"^schema/?$", docs.SchemaView.as_view(), name="schema"),
    re_path(r"^docs/?$", docs.DocsView.as_view(), name="docs"),
    *router.urls,
]

urlpatterns = [
    re_path(r"^v1/", include(v1)),
    re_path(r"^v1$", docs.RootView.as_view(schema=None)),
    re_path(r"^", docs.NowhereView.as_view(), name="nowhere"),
]
