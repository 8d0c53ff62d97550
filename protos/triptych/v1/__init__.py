"""The contract. `make protos` generates Python from the .proto files here; it is not committed."""
