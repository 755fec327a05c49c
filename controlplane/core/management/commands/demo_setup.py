"""manage.py demo_setup: the sample fleet and workloads, once; a second run adds only what is missing."""

from __future__ import annotations

import secrets
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.db import transaction

from controlplane.core.management.base import PlainCommand
from controlplane.core.models import Role, User
from controlplane.core.sample import fleet, workloads
from controlplane.planning.services import compute_plan
from planner.errors import PlannerError

ADMINISTRATOR = "admin"


class Command(PlainCommand):
    """Catalogue, sites, nodes, prices, traces, workloads, scenario, administrator, a first plan."""

    help = "Loads the sample fleet and workloads; nothing that exists is changed."

    def handle(self, *args: Any, **options: Any) -> None:
        """Load step by step, saying each."""
        try:
            self._load()
        except (ValidationError, PlannerError) as error:
            raise CommandError(f"The sample could not be loaded: {error}") from error

    def _load(self) -> None:
        with transaction.atomic():
            gpus, kinds, prices = fleet.load_catalogue()
            self.say(f"Catalogue: {gpus} GPUs, {kinds} node types, {prices} prices")
        with transaction.atomic():
            nodes = fleet.load_nodes()
            local = fleet.load_local_node()
            self.say(f"Sample fleet: 2 sites, {nodes} nodes, and this host")
        with transaction.atomic():
            self.say(f"Request traces: {workloads.load_traces()}")
        with transaction.atomic():
            rows = workloads.load_workloads()
            scenario = workloads.load_scenario(rows)
            workloads.load_local_deployment(local)
            self.say(f"Workloads: {len(rows)} in the scenario {scenario}")
        self._administrator()
        if not scenario.plans.exists():
            compute_plan(actor=None, scenario=scenario)
            self.say("Plan: submitted; it is computed as soon as the workers run")

    def _administrator(self) -> None:
        """An administrator when there is none; the password is shown this once."""
        with transaction.atomic():
            if User.objects.filter(is_superuser=True).exists():
                self.say("Administrator: exists (forgotten its password? manage.py changepassword admin)")
                return
            password = secrets.token_urlsafe(12)
            user = User.objects.create_superuser(ADMINISTRATOR, password=password, role=Role.ADMIN)
        self.say(f"Administrator: user {user.username}, password {password}  (shown this once)")
