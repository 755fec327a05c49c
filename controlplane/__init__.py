"""The Django project of Tonnage: inventory, workloads, planning, deployments, API and dashboard."""
