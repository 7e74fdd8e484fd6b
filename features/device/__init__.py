"""Devices: data sheets, catalogue, detection, and shares of a device."""
