"""The variables that Kubernetes sets in every container of a namespace."""


def injected(service: str, port: int, port_name: str, protocol: str) -> dict[str, str]:
    """As kubernetes/pkg/kubelet/envvars makes them."""
    prefix = service.upper().replace("-", "_")
    url = f"{protocol.lower()}://10.0.0.1:{port}"
    each = f"{prefix}_PORT_{port}_{protocol}"
    return {
        f"{prefix}_SERVICE_HOST": "10.0.0.1",
        f"{prefix}_SERVICE_PORT": str(port),
        f"{prefix}_SERVICE_PORT_{port_name.upper().replace('-', '_')}": str(port),
        f"{prefix}_PORT": url,
        each: url,
        f"{each}_PROTO": protocol.lower(),
        f"{each}_PORT": str(port),
        f"{each}_ADDR": "10.0.0.1",
    }
