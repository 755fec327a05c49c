"""Routes: admin console, REST API, pages."""

from django.contrib import admin
from django.urls import include, path

from controlplane.core.health import healthz

admin.site.site_header = "Tonnage"
admin.site.site_title = "Tonnage"
admin.site.index_title = "Administration"

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("admin/", admin.site.urls),
    path("api/", include("controlplane.api.urls")),
    path("", include("controlplane.dashboard.urls")),
]
