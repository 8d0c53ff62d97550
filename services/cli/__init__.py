"""The `triptych` command. It starts processes and calls them; a service is imported only where it runs."""
