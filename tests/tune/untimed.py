"""Hypothesis without its limits on time, which a slow machine would exceed."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
