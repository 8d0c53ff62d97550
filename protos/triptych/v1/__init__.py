"""The contract. Generated from the .proto files here by `make protos`; the generated files are not committed."""
