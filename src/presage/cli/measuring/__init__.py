"""Commands that measure, and that describe devices and this machine."""
