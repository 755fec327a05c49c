"""Routes of the web pages."""

from django.urls import URLPattern, URLResolver

app_name = "dashboard"
urlpatterns: list[URLPattern | URLResolver] = []
