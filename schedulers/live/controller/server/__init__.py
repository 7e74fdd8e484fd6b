"""gRPC server of the controller: services for users and for node agents."""
