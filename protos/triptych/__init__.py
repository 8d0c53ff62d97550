"""Holds `triptych.v1`, the contract."""
