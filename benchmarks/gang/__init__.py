"""Gang scheduling by interference and communication."""
