"""The public gRPC contract (`blockyard.v1`) and the stubs generated from it."""
