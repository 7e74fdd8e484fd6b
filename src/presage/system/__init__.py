"""Files, processes and text: helpers without domain knowledge that every layer uses."""
