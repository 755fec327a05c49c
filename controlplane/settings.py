"""Django settings. What varies between installations comes from controlplane.env; nothing else does."""

from __future__ import annotations

import logging.config
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog
from csp.constants import NONCE, NONE, SELF

from controlplane import env as _env

BASE_DIR = _env.BASE_DIR
ENV = _env.load()
DATA_DIR = ENV.data_dir
DEBUG = ENV.debug
SECRET_KEY = _env.secret_key(ENV)
ALLOWED_HOSTS = list(ENV.allowed_hosts)
CURRENCY = ENV.currency  # of the fleet's pages, and of a new scenario
ROOT_URLCONF = "controlplane.urls"
WSGI_APPLICATION = "controlplane.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "core.User"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "django_tables2",
    "import_export",
    "axes",
    "csp",
    "controlplane.core",
    "controlplane.jobs",
    "controlplane.inventory",
    "controlplane.workloads",
    "controlplane.planning",
    "controlplane.deployments",
    "controlplane.api",
    "controlplane.dashboard",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "controlplane.core.middleware.RequestIdMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
            ],
        },
    },
]

DATABASES = {"default": _env.database(ENV)}

AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_ENABLE_ADMIN = False

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = DATA_DIR / "static"
STATICFILES_DIRS: list[Path | tuple[str, str]] = []
_plotly = find_spec("plotly")
if _plotly is not None and _plotly.submodule_search_locations:
    # Served as /static/plotly/plotly.min.js straight from the wheel: no copy, no network.
    STATICFILES_DIRS.append(("plotly", str(Path(next(iter(_plotly.submodule_search_locations))) / "package_data")))
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = True
WHITENOISE_MAX_AGE = 3600

DATA_UPLOAD_MAX_MEMORY_SIZE = 5 * 2**20
FILE_UPLOAD_MAX_MEMORY_SIZE = 5 * 2**20
DATA_UPLOAD_MAX_NUMBER_FIELDS = 10_000
IMPORT_MAX_BYTES = 10 * 2**20
IMPORT_MAX_ROWS = 20_000
TRACE_MAX_BYTES = 64 * 2**20  # after decompression
TRACE_MAX_ROWS = 1_000_000

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENV.https
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 12 * 3600
SECURE_SSL_REDIRECT = ENV.https
SECURE_HSTS_SECONDS = 31_536_000 if ENV.https else 0
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if ENV.https else None
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF, NONCE],
        # The hash is that of an empty style element: Plotly makes one and fills it through the CSSOM.
        "style-src": [SELF, NONCE, "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"],
        "img-src": [SELF, "data:", "blob:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    },
}

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "controlplane.api.schema.ApiSchema",
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "controlplane.api.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["controlplane.api.authentication.MayUse"],
    "DEFAULT_FILTER_BACKENDS": [
        "controlplane.api.filters.StrictFilter",
        "rest_framework.filters.SearchFilter",
        "controlplane.api.filters.StrictOrdering",
    ],
    "DEFAULT_PAGINATION_CLASS": "controlplane.api.pagination.Pages",
    "DEFAULT_PARSER_CLASSES": ["controlplane.api.parsing.JsonParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "EXCEPTION_HANDLER": "controlplane.api.problems.handle",
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_THROTTLE_CLASSES": [
        "rest_framework.throttling.AnonRateThrottle",
        "rest_framework.throttling.UserRateThrottle",
    ],
    # Counted in each web process: a guard against runaway scripts, not an exact quota.
    "DEFAULT_THROTTLE_RATES": {"anon": "60/min", "user": "1200/min", "planner": "240/min", "provision": "10/min"},
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
    "COERCE_DECIMAL_TO_STRING": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Tonnage API",
    "DESCRIPTION": (
        "Capacity, cost, placement and validation of LLM inference on the GPUs you own. Figures are predictions with "
        "their evidence and 80 % interval unless they say measured; whatever an emulated engine yielded is marked."
    ),
    "VERSION": "1.0.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {
        "deepLinking": True,
        "docExpansion": "none",
        "filter": True,
        "displayRequestDuration": True,
    },
    "COMPONENT_SPLIT_REQUEST": True,
    "COMPONENT_NO_READ_ONLY_REQUIRED": True,
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "SORT_OPERATIONS": True,
    "POSTPROCESSING_HOOKS": ["controlplane.api.schema.add_problems"],
}
IMPORT_EXPORT_USE_TRANSACTIONS = True
IMPORT_EXPORT_SKIP_ADMIN_LOG = True
IMPORT_EXPORT_ESCAPE_FORMULAE_ON_EXPORT = True

# Jobs
JOB_HEARTBEAT_S = 10
JOB_STALE_S = 60  # a running job without a heartbeat for this long is taken to be dead
JOB_RESEND_S = 30  # a queued job not claimed for this long is sent again
SCHEDULER_TICK_S = 2.0

ENGINE_PORTS = ENV.engine_ports

# Logging: one line a record, key=value for people or JSON for machines.
_shared: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
LOGGING_CONFIG = None
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": structlog.stdlib.ProcessorFormatter,
            "foreign_pre_chain": _shared,
            "processors": [
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer()
                if ENV.log_json
                else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "logger", "event"]),
            ],
        },
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "django": {"level": "INFO"},
        "django.server": {"level": "WARNING"},
        "axes": {"level": "WARNING"},
        "celery": {"level": "WARNING"},
        "kombu": {"level": "ERROR"},
    },
}
logging.config.dictConfig(LOGGING)
structlog.configure(
    processors=[*_shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)
