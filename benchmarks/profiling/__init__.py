"""Cost and accuracy of measurements, and campaigns on GPU machines."""
