"""The prediction service's protocol, version 1; all but this file is generated from the proto."""
