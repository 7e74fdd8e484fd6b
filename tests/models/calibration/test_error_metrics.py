import numpy as np
import pytest

from presage.models.calibration.error_metrics import interval_metrics, point_metrics


def test_point_metrics_of_a_small_example():
    found = point_metrics(np.array([1.0, 2.0, 4.0]), np.array([1.05, 2.0, 3.0]))

    assert found["rows"] == 3
    assert found["mape"] == pytest.approx((5 + 0 + 25) / 3)
    assert found["median_ape"] == pytest.approx(5)
    assert found["within_10pct"] == pytest.approx(200 / 3)
    assert found["mae"] == pytest.approx((0.05 + 0 + 1) / 3)


def test_interval_metrics_of_a_small_example():
    y = np.array([1.0, 2.0, 4.0, 8.0])
    found = interval_metrics(y, y - 1, np.array([2.0, 3.0, 3.9, 9.0]))

    assert found["coverage"] == 75
    assert found["interval_width"] == pytest.approx(100 * (1 + 0.25) / 2)
