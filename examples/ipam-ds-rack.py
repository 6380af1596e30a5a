#!/usr/bin/env python3
"""Chooses the pool by the rack of this host: a selector in Python, standard library only.

Install it as `ipam-ds-rack`, without the ending: the chain knows a selector by its name.
"""

import json
import os
import sys

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


class Failure(Exception):
    """The error that the chain gets: a code and a message."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def select(ipam):
    """Answers the pools for this host, by the keys of `ipam`."""
    rack_file, racks = ipam.get("rackFile"), ipam.get("racks")
    if not isinstance(rack_file, str):
        raise Failure(7, "ipam.rackFile: expected the path of a file with the name of the rack")
    if not isinstance(racks, dict) or not all(isinstance(pool, str) for pool in racks.values()):
        raise Failure(7, "ipam.racks: expected an object: the name of a pool for each rack")
    try:
        with open(rack_file, encoding="utf-8") as file:
            rack = file.read().strip()
    except (OSError, ValueError) as error:
        raise Failure(5, f"ipam.rackFile: cannot read {rack_file}") from error
    if not racks.get(rack):
        raise Failure(7, f'ipam.racks: no pool for rack "{rack}"')
    return [{"name": racks[rack]}]


def answer(verb):
    if verb == "VERSION":
        return {"cniVersion": VERSIONS[-1], "supportedVersions": VERSIONS}
    if verb not in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        raise Failure(4, f"unknown CNI_COMMAND: {verb}")
    try:
        config = json.load(sys.stdin)
    except ValueError as error:
        raise Failure(6, "the network configuration on stdin is not one JSON object") from error
    if not isinstance(config, dict):
        raise Failure(6, "the network configuration on stdin is not one JSON object")
    ipam = config.get("ipam")
    if not isinstance(ipam, dict):
        raise Failure(7, "ipam: expected an object")
    # The answer is prevResult, with our pool behind those of the selectors before (C15, C16).
    result = {"cniVersion": config.get("cniVersion", "0.1.0"), "ips": []}
    result.update(config.get("prevResult") or {})
    earlier = result.get("pools") or []
    names = [pool.get("name") for pool in earlier]
    result["pools"] = earlier + [pool for pool in select(ipam) if pool["name"] not in names]
    return result


def main():
    verb = os.environ.get("CNI_COMMAND")
    if verb is None:
        text = "ipam-ds-rack: a CNI IPAM delegate; runtimes call it with CNI_COMMAND set."
        print(text, file=sys.stderr)
        return 0
    try:
        print(json.dumps(answer(verb)))
    except Failure as failure:
        error = {"cniVersion": VERSIONS[-1], "code": failure.code, "msg": str(failure)}
        if failure.__cause__:
            error["details"] = str(failure.__cause__)
        print(json.dumps(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
