"""Envoy's configuration: a listener that admits requests when tollgate is unavailable, and one that does not."""

import json

HTTP = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
LIMIT = "envoy.extensions.filters.http.ratelimit.v3.RateLimit"
HTTP2 = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
NAME = "envoy.filters.http.ratelimit"


def typed(name, **fields):
    return {"@type": f"type.googleapis.com/{name}", **fields}


def address(where):
    """An address from HOST:PORT or unix:PATH."""
    if where.startswith("unix:"):
        return {"pipe": {"path": where.removeprefix("unix:")}}
    host, port = where.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}


def cluster(name, where, **fields):
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(where)}}]}]
    assignment = {"cluster_name": name, "endpoints": endpoints}
    return {"name": name, "type": "STATIC", "connect_timeout": "5s", "load_assignment": assignment, **fields}


def route(path, *actions, cost=None):
    """A route with a descriptor for each action. Envoy reads `hits_addend` only from `typed_per_filter_config`."""
    result = {"match": {"path": path}, "route": {"cluster": "upstream"}}
    limits = [{"actions": [action]} for action in actions]
    if cost is None:
        result["route"]["rate_limits"] = limits
    else:
        limits = [{**limit, "hits_addend": {"number": cost}} for limit in limits]
        result["typed_per_filter_config"] = {NAME: typed(f"{LIMIT}PerRoute", rate_limits=limits)}
    return result


def generic(key, value):
    return {"generic_key": {"descriptor_key": key, "descriptor_value": value}}


CLIENT = {"remote_address": {}}
TENANT = {"request_headers": {"header_name": "x-tenant", "descriptor_key": "tenant"}}
ROUTES = [
    route("/client", CLIENT),
    route("/both", CLIENT, TENANT),
    route("/tenant", TENANT),
    route("/costly", generic("path", "/costly"), cost=4),
    route("/cheap", generic("path", "/costly"), cost=2),
    route("/shadow", generic("trial", "shadowed")),
    route("/unlimited", generic("unknown", "key")),
]


def listener(name, where, deny):
    limit = typed(
        LIMIT,
        domain="edge",
        failure_mode_deny=deny,
        # The default of 20 ms admits requests when this machine is busy.
        timeout="10s",
        enable_x_ratelimit_headers="DRAFT_VERSION_03",
        rate_limit_service={
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "tollgate"}},
        },
    )
    router = typed("envoy.extensions.filters.http.router.v3.Router")
    manager = typed(
        HTTP,
        stat_prefix=name,
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": ROUTES}]},
        http_filters=[
            {"name": NAME, "typed_config": limit},
            {"name": "envoy.filters.http.router", "typed_config": router},
        ],
    )
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {"name": name, "address": address(where), "filter_chains": [{"filters": filters}]}


def config(tollgate, upstream, admits, denies):
    """The configuration as JSON. ADMITS and DENIES are the addresses of the two listeners."""
    http2 = {"explicit_http_config": {"http2_protocol_options": {}}}
    clusters = [
        cluster("upstream", upstream),
        cluster("tollgate", tollgate, typed_extension_protocol_options={HTTP2: typed(HTTP2, **http2)}),
    ]
    listeners = [listener("admits", admits, False), listener("denies", denies, True)]
    return json.dumps({"static_resources": {"listeners": listeners, "clusters": clusters}})
