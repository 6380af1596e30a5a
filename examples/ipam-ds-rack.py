#!/usr/bin/env python3
"""Chooses the pool by the rack of this host. Install it as ipam-ds-rack, without the ending."""

import json
import os
import sys

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


class Failure(Exception):
    """A code, a message and perhaps details: the error that the chain gets."""


def select(ipam):
    rack_file, racks = ipam.get("rackFile"), ipam.get("racks")
    if not isinstance(rack_file, str):
        raise Failure(7, "ipam.rackFile: expected the path of a file with the name of the rack")
    if not isinstance(racks, dict):
        raise Failure(7, "ipam.racks: expected an object: a pool for each rack")
    try:
        with open(rack_file, encoding="utf-8") as file:
            rack = file.read().strip()
    except (OSError, ValueError) as error:
        raise Failure(5, f"ipam.rackFile: cannot read {rack_file}", str(error)) from error
    if racks.get(rack) is None:
        raise Failure(7, f'ipam.racks: no pool for rack "{rack}"')
    pool = racks[rack]
    if not isinstance(pool, dict) or not (pool.get("name") or pool.get("ranges")):
        raise Failure(7, f"ipam.racks.{rack}: expected an object with name or ranges")
    return pool


def answer(verb):
    """Answers prevResult, with the pool behind those of the selectors before (C15, C16)."""
    if verb == "VERSION":
        return {"cniVersion": VERSIONS[-1], "supportedVersions": VERSIONS}
    if verb not in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        raise Failure(4, f"unknown CNI_COMMAND: {verb}")
    try:
        config = json.load(sys.stdin)
        result = {"cniVersion": config.get("cniVersion", "0.1.0"), "ips": []}
        result.update(config.get("prevResult") or {})
    except (AttributeError, ValueError) as error:
        raise Failure(6, "stdin: expected one JSON object", str(error)) from error
    if not isinstance(config.get("ipam"), dict):
        raise Failure(7, "ipam: expected an object")
    pool, pools = select(config["ipam"]), result.get("pools") or []
    same = [it for it in pools if it.get("name") and it["name"] == pool.get("name")]
    result["pools"] = pools if same else pools + [pool]
    for it in same:
        it.update(pool)
    return result


verb = os.environ.get("CNI_COMMAND")
if verb is None:
    print("ipam-ds-rack: a selector of ipam-delegated, which calls it", file=sys.stderr)
    sys.exit(0)
try:
    print(json.dumps(answer(verb)))
except Exception as error:
    values = error.args if isinstance(error, Failure) else (199, f"bug: {error!r}")
    values = dict(zip(("code", "msg", "details"), values))
    print(json.dumps({"cniVersion": VERSIONS[-1], **values}))
    sys.exit(1)
