"""The bandwidth strip's ceiling: only of a machine that the source's label names, with room above it."""

import numpy as np
import pytest
from bokeh.models import Range1d

from mkviz.dashboard.strips import Bandwidth


@pytest.fixture
def strip():
    return Bandwidth(Range1d(0, 1))


@pytest.mark.parametrize("label", ["recorded on NVIDIA H200", "recorded (NVIDIA H200): 6 layers", "simulated (H200)"])
def test_an_h200_has_its_ceiling(strip, label):
    strip.of(label)
    assert strip.limit.visible and strip.limit_text.visible
    assert strip.limit.location == strip.limit_text.y == 4550  # GB/s; 4.55 TB/s was measured
    assert strip.limit_text.text == "4.55 TB/s: the most one H200 was measured to read"
    assert strip.top(None, np.array([100.0])) == 6000


@pytest.mark.parametrize("label", ["measured (cpu)", "recorded on NVIDIA GH200", ""])
def test_other_machines_have_none(strip, label):
    strip.of("simulated (H200)")
    strip.of(label)
    assert not strip.limit.visible and not strip.limit_text.visible
    assert strip.top(None, np.array([100.0])) == 100 and strip.top(None, np.array([110.0])) == 200
    assert strip.top(None, np.zeros(3)) == 1
