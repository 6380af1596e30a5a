#!/usr/bin/env python3
"""Gives addresses, a file for each: an allocator in Python's standard library alone.

Install it as `ipam-da-files`, without the ending. DATADIR/NETWORK/ADDRESS holds the owner and the
lease as JSON. A lock on the folder keeps the calls of this node apart, and each file is created
whole or not at all. It reads all files of the network at each call, which is quick for some
thousand leases. It is for a disk of one node: nodes must not share the folder.
"""

import fcntl
import json
import os
import re
import sys
import time
from contextlib import suppress
from ipaddress import ip_address, ip_interface, ip_network
from itertools import chain, dropwhile, islice

VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
ABOUT = {"name": "ipam-da-files", "version": "1", "role": "allocator", "reach": "node",
         "keys": {"dataDir": None, "serves": None, "statusExhaustion": None}}
GRACE = 300  # GC keeps younger leases, in seconds.


class Failure(Exception):
    """A code and a message: the error that the chain gets."""


class Store:
    """The leases of one network, locked until this process ends."""

    def __init__(self, config):
        network, data = config.get("name"), config["ipam"].get("dataDir")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", str(network)):
            raise Failure(7, f"name: invalid network name {network!r}")
        self.folder = os.path.join(data or "/var/lib/ipam-da-files", network)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        fcntl.flock(os.open(self.folder, os.O_RDONLY), fcntl.LOCK_EX)

    def path(self, name):
        return os.path.join(self.folder, str(name))

    def all(self):
        """Reads every lease, by address. A file that is not a lease fails the call."""
        leases = {}
        for name in filter(lambda name: name[0] != ".", os.listdir(self.folder)):
            try:
                with open(self.path(name), encoding="utf-8") as file:
                    leases[ip_address(name)] = json.load(file)
            except ValueError as error:
                raise Failure(5, f"{self.path(name)}: invalid lease file: {error}") from error
        return leases

    def create(self, address, lease):
        """Takes an address: link fails if another process made its file."""
        new = self.path(".new")
        with suppress(FileNotFoundError):
            os.unlink(new)  # After a kill it may be a second name of a lease.
        with open(new, "x", encoding="utf-8") as file:
            json.dump(lease, file)
            file.flush()
            os.fsync(file.fileno())
        os.link(new, self.path(address))
        os.unlink(new)

    def release(self, address):
        os.unlink(self.path(address))


class Range:
    """One range of a pool, with host-local's members and defaults."""

    def __init__(self, written):
        self.subnet = ip_network(written["subnet"])
        last = self.subnet.broadcast_address - (1 if self.subnet.version == 4 else 0)
        first = self.subnet.network_address + 1
        self.first = ip_address(written.get("rangeStart") or first)
        self.last = ip_address(written.get("rangeEnd") or last)
        self.gateway = ip_address(written.get("gateway") or first)
        self.excluded = [ip_network(text, strict=False) for text in written.get("exclude") or []]

    def may_give(self, address):
        return (address.version == self.subnet.version and self.first <= address <= self.last
                and address != self.gateway and not any(address in it for it in self.excluded))

    def addresses(self):
        return map(type(self.first), range(int(self.first), int(self.last) + 1))


class Pool:
    """What an ADD asks for: one address out of some ranges."""

    def __init__(self, number, written):
        self.path = f"prevResult.pools[{number}]"
        self.name, self.index = written.get("name"), written.get("index", number)
        self.strategy = written.get("strategy") or "round-robin"
        requested = written.get("requested-ip") or written.get("requested_ip")
        try:
            self.requested = ip_interface(requested).ip if requested else None
            self.ranges = [Range(it) for it in written.get("ranges") or []]
        except (KeyError, ValueError) as error:
            raise Failure(7, f"{self.path}: invalid ranges or request: {error}") from error
        if not self.ranges:
            raise Failure(7, f"{self.path}.ranges: missing: this allocator knows no pool by name")
        if self.strategy not in ("round-robin", "lowest", "random"):
            raise Failure(7, f"{self.path}.strategy: unknown strategy {self.strategy!r}")

    def range_of(self, address):
        return next((it for it in self.ranges if it.may_give(address)), None)

    def choose(self, taken, mine, last):
        """Chooses what the owner holds already, or else a free address."""
        if self.requested and not self.range_of(self.requested):
            raise Failure(101, f"{self.path}: requested {self.requested} is not in the pool")
        if self.requested and self.requested in taken and self.requested not in mine:
            raise Failure(102, f"{self.path}: requested {self.requested} is taken")
        wanted = [self.requested] if self.requested else mine
        for address in filter(self.range_of, chain(wanted, self.candidates(last))):
            if address in mine or address not in taken:
                return address
        raise Failure(100, f"{self.path}: no free address")

    def candidates(self, last):
        def every():
            return (address for it in self.ranges for address in it.addresses())
        if self.strategy == "random":
            for it in 64 * self.ranges:
                size = int(it.last) - int(it.first) + 1
                yield it.first + int.from_bytes(os.urandom(16), "big") % size
        if self.strategy == "round-robin" and last and self.range_of(last):
            yield from islice(dropwhile(lambda address: address != last, every()), 1, None)
        yield from every()


def held(leases, config):
    """Returns what this attachment holds, of the pools that this delegate serves (C22, C23)."""
    owner = (os.environ.get("CNI_CONTAINERID"), os.environ.get("CNI_IFNAME"))
    if not all(owner):
        raise Failure(4, "CNI_CONTAINERID and CNI_IFNAME: expected both")
    serves = config["ipam"].get("serves")
    return [address for address, it in leases.items()
            if (it["containerID"], it["ifname"]) == owner
            and (serves is None or it["lease"]["pool"] in serves)]


def pools_of(config):
    return [Pool(*it) for it in enumerate(config["prevResult"].get("pools") or [])]


def static_of(config):
    """Returns the addresses that are answered and never leased (C17)."""
    return {ip_interface(it["address"]).ip for it in config["prevResult"].get("static") or []}


def add(config):
    pools, static, store = pools_of(config), static_of(config), Store(config)
    if not pools and not static:
        raise Failure(7, "prevResult.pools: expected at least one pool: put a selector before")
    leases, given = store.all(), []
    mine, taken = held(leases, config), {*leases, *static}
    for pool in pools:
        last = store.path(f".last-{pool.index}")
        cursor = ip_address(os.readlink(last)) if os.path.islink(last) else None
        address = pool.choose(taken, [it for it in mine if it not in {*given, *static}], cursor)
        taken.add(address)
        given.append(address)
    # Everything is known: from here on only the disk can fail.
    answers, ips, created = [], [], []
    try:
        for pool, address in zip(pools, given):
            its = pool.range_of(address)
            answer = {"pool": pool.name, "address": f"{address}/{its.subnet.prefixlen}",
                      "gateway": str(its.gateway)}
            if address in mine:
                os.utime(store.path(address))
            else:
                store.create(address, {"containerID": os.environ["CNI_CONTAINERID"],
                                       "ifname": os.environ["CNI_IFNAME"],
                                       "taken": int(time.time() * 1000), "lease": answer})
                created.append(address)
            ips.append({"version": str(address.version), **answer})
            answers.append({**answer, "kept": address in mine})
    except OSError:
        for address in created:
            store.release(address)
        raise
    for address in set(mine) - set(given):
        store.release(address)
    for pool, address in zip(pools, given):
        if address in created:
            last = store.path(f".last-{pool.index}")
            os.symlink(str(address), last + "~")
            os.replace(last + "~", last)
    result = config["prevResult"]
    ips = [{key: it[key] for key in ("version", "address", "gateway")} for it in ips]
    result["ips"] = [*result.get("ips", []), *ips, *(result.pop("static", None) or [])]
    return {"cniVersion": config["cniVersion"], **result, "pools": [], "leases": answers}


def del_(config):
    """Releases what the attachment holds; an undo, what its ADD took (C27)."""
    store, result = Store(config), config["prevResult"]
    mine = held(store.all(), config)
    if result.get("undo"):
        took = [it["address"] for it in result.get("leases") or [] if not it.get("kept")]
        mine = [address for address in mine if address in [ip_interface(it).ip for it in took]]
    for address in mine:
        store.release(address)


def check(config):
    mine = set(held(Store(config).all(), config))
    listed = [{ip_interface(it["address"]).ip for it in config["prevResult"].get(key) or []}
              for key in ("leases", "ips")]
    if not (mine or static_of(config)) or not listed[0] <= mine or not mine <= listed[1]:
        raise Failure(104, f"held are {sorted(map(str, mine))}, not the addresses of prevResult")


def gc(config):
    lists = [config.get(f"cni.dev/{key}") for key in ("valid-attachments", "attachments")]
    if lists == [None, None]:
        raise Failure(7, "cni.dev/valid-attachments: missing: GC releases nothing without it")
    keep = {(it["containerID"], it["ifname"]) for named in lists for it in named or []}
    store = Store(config)
    for address, it in store.all().items():
        is_old = os.stat(store.path(address)).st_mtime < time.time() - GRACE
        if is_old and (it["containerID"], it["ifname"]) not in keep:
            store.release(address)


def status(config):
    pools, store = pools_of(config), Store(config)
    if not os.access(store.folder, os.W_OK):
        raise Failure(50, f"{store.folder}: not writable")
    if config["ipam"].get("statusExhaustion"):
        taken = store.all()
        for pool in pools:
            pool.requested = None
            pool.choose(taken, [], None)


VERBS = {"ADD": add, "DEL": del_, "CHECK": check, "GC": gc, "STATUS": status}


def answer_to(verb):
    if verb == "VERSION":
        return {"cniVersion": VERSIONS[-1], "supportedVersions": VERSIONS}
    if verb not in VERBS:
        raise Failure(4, f"unknown CNI_COMMAND: {verb}")
    try:
        config = json.load(sys.stdin)
        config["prevResult"] = config.get("prevResult") or {}
    except (AttributeError, TypeError, ValueError) as error:
        raise Failure(6, f"stdin: expected one JSON object: {error}") from error
    if config.get("cniVersion") not in VERSIONS:
        raise Failure(1, f"cniVersion: expected one of {VERSIONS}")
    if not isinstance(config.get("ipam"), dict):
        raise Failure(7, "ipam: expected an object")
    return VERBS[verb](config)


def main():
    verb = os.environ.get("CNI_COMMAND")
    if verb is None and sys.argv[1:] == ["about", "--json"]:
        print(json.dumps(ABOUT))
        return 0
    if verb is None:
        print("ipam-da-files: an allocator of ipam-delegated, which calls it", file=sys.stderr)
        return 1
    try:
        answer = answer_to(verb)
        print(json.dumps(answer) if answer else "", end="")
        return 0
    except Failure as failure:
        code, message = failure.args
    except OSError as failure:
        code, message = 5, str(failure)
    except Exception as bug:
        code, message = 199, f"internal error (bug): {bug!r}"
    print(json.dumps({"cniVersion": VERSIONS[-1], "code": code, "msg": message}))
    return 1


if __name__ == "__main__":
    sys.exit(main())
