"""Gang scheduling by interference and communication cost (requirements A to D)."""
