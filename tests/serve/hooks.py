"""Makes the requests of schemathesis decidable: valid limits instead of random texts, and ids that differ.

schemathesis loads this file by SCHEMATHESIS_HOOKS. Values that violate the document stay as they are.
"""

import json
import uuid

import schemathesis

LIMITS = [
    "10/s burst 20",
    "1000 per calendar 1d",
    "100 once",
    "unlimited",
    "100 in 60s at 5s",
    "60/min; tokens: 40000/min cost tokens",
]


def is_text(value):
    return isinstance(value, str) and value != ""


def with_limit(limit):
    """LIMIT with a text that the server can parse, and without a plan beside it."""
    if not isinstance(limit, dict) or not is_text(limit.get("limit")):
        return limit
    plan = {"plan": None} if is_text(limit.get("plan")) else {}
    return {**limit, "limit": LIMITS[sum(limit["limit"].encode()) % len(LIMITS)], **plan}


def with_own_id(body):
    with_its_id = is_text(body.get("id")) and len(body["id"]) == 36
    return {**body, "id": str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body)))} if with_its_id else body


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    if not isinstance(body.get("limits"), list):
        return with_limit(body)
    return with_own_id({**body, "limits": [with_limit(limit) for limit in body["limits"]]})


@schemathesis.hook
def map_query(context, query):
    return with_limit(query) if isinstance(query, dict) and "plan" not in query else query
