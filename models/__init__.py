"""Networks, training, calibration, the release format and the registry."""
