"""Facts with a source each: GPUs, node types, prices, models, traces."""

from planner.catalog.gpus import (
    get_gpu,
    get_node_type,
    list_gpus,
    list_node_types,
    measured_matmul,
    with_reported_memory,
)
from planner.catalog.mig import MigProfile, check_partition, mig_profile, mig_profiles, slice_name
from planner.catalog.models import (
    ModelSource,
    PublishedParams,
    get_model,
    list_models,
    model_source,
    published_params,
)
from planner.catalog.prices import price_facts
from planner.catalog.traces import (
    RateProfile,
    TraceData,
    get_rate_profile,
    get_trace,
    list_rate_profiles,
    list_traces,
)

__all__ = [
    "MigProfile",
    "ModelSource",
    "PublishedParams",
    "RateProfile",
    "TraceData",
    "check_partition",
    "get_gpu",
    "get_model",
    "get_node_type",
    "get_rate_profile",
    "get_trace",
    "list_gpus",
    "list_models",
    "list_node_types",
    "list_rate_profiles",
    "list_traces",
    "measured_matmul",
    "mig_profile",
    "mig_profiles",
    "model_source",
    "price_facts",
    "published_params",
    "slice_name",
    "with_reported_memory",
]
