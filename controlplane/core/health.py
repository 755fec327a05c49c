"""Whether the application can do its work; for load balancers, and for whoever waits for it to start."""

from __future__ import annotations

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse


def healthz(request: HttpRequest) -> JsonResponse:
    """200 when the database answers, else 503."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return JsonResponse({"status": "failed", "database": str(error)[:200]}, status=503)
    return JsonResponse({"status": "ok"})
