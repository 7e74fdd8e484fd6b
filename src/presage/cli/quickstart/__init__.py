"""``presage quickstart``: a first served forecast, with a picture."""
