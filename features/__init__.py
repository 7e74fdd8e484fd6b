"""Jobs, devices and co-locations, and the features computed from them."""
