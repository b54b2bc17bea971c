"""Messages of envoy.service.ratelimit.v3, with the field numbers of Envoy's API, and calls with them over grpcio.

They do not come from tollgate's reflection: a wrong number there would go unnoticed here.
"""

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, wrappers_pb2

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
OK, OVER_LIMIT = 1, 2
DAY = 4

# A field's type is one of protobuf, or a message. A `*` makes it repeated.
MESSAGES = {
    "Entry": {"key": (1, "string"), "value": (2, "string")},
    "Override": {"requests_per_unit": (1, "uint32"), "unit": (2, "int32")},
    "Descriptor": {
        "entries": (1, "*.trial.Entry"),
        "limit": (2, ".trial.Override"),
        "hits_addend": (3, ".google.protobuf.UInt64Value"),
        "is_negative_hits": (4, "bool"),
    },
    "Request": {"domain": (1, "string"), "descriptors": (2, "*.trial.Descriptor"), "hits_addend": (3, "uint32")},
    "Limit": {"requests_per_unit": (1, "uint32"), "unit": (2, "int32"), "name": (3, "string")},
    "Status": {
        "code": (1, "int32"),
        "current_limit": (2, ".trial.Limit"),
        "limit_remaining": (3, "uint32"),
        "duration_until_reset": (4, ".google.protobuf.Duration"),
    },
    "Header": {"key": (1, "string"), "value": (2, "string"), "raw_value": (3, "bytes")},
    "Response": {
        "overall_code": (1, "int32"),
        "statuses": (2, "*.trial.Status"),
        "response_headers_to_add": (3, "*.trial.Header"),
        "raw_body": (5, "bytes"),
    },
}


def _classes():
    file = descriptor_pb2.FileDescriptorProto(name="trial.proto", package="trial", syntax="proto3")
    file.dependency.extend([duration_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name])
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            proto = message.field.add(name=field, number=number)
            proto.label = proto.LABEL_REPEATED if kind.startswith("*") else proto.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            if kind.startswith("."):
                proto.type, proto.type_name = proto.TYPE_MESSAGE, kind
            else:
                proto.type = getattr(proto, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.Default()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"trial.{name}")) for name in MESSAGES}


_CLASSES = _classes()
Request, Response = _CLASSES["Request"], _CLASSES["Response"]


def request(domain, *descriptors, hits_addend=0):
    """A request with a dict of entries for each descriptor."""
    message = Request(domain=domain, hits_addend=hits_addend)
    for entries in descriptors:
        descriptor = message.descriptors.add()
        for key, value in entries.items():
            descriptor.entries.add(key=key, value=value)
    return message


def call(channel, message, timeout=30):
    """Sends a message, or bytes as they are. An error is a grpc.RpcError."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return channel.unary_unary(METHOD, response_deserializer=Response.FromString)(data, timeout=timeout)


def error(channel, message):
    """Sends what must fail, and returns the error, or None."""
    try:
        call(channel, message)
    except grpc.RpcError as failure:
        return failure
    return None
