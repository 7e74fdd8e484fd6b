"""DVC stage that fits the hazard model."""
