#!/usr/bin/env python3
"""Refuses dependencies whose licence, name or source is not wanted, by .deny.toml. Needs no network."""

import json
import re
import subprocess
import sys
import tomllib

with open(".deny.toml", "rb") as file:
    rules = tomllib.load(file)
allowed = set(rules["licenses"]["allow"])
banned = {entry["crate"]: entry["reason"] for entry in rules["bans"]["deny"]}

# A licence with its exception is one word; `/` is an old way to write OR.
WORD = re.compile(r"\(|\)|/|[\w.+-]+(?: WITH [\w.+-]+)?")
OPERATORS = {"(": "(", ")": ")", "/": "or", "OR": "or", "AND": "and"}


def is_allowed(licence):
    """Whether an SPDX expression can be met with allowed licences alone."""
    words = WORD.findall(licence)
    # Only True, False, and, or and parentheses are left to evaluate.
    terms = [OPERATORS.get(word) or str(word in allowed) for word in words]
    return bool(terms) and eval(" ".join(terms), {"__builtins__": {}})


def problems(package):
    if not is_allowed(package["license"] or ""):
        yield f"its licence {package['license']!r} is not among the allowed ones"
    if package["name"] in banned:
        yield f"it is banned: {banned[package['name']]}"
    if not (package["source"] or "registry+").startswith("registry+"):
        yield f"it comes from {package['source']}, not from the registry"


command = ["cargo", "metadata", "--format-version", "1", "--all-features", "--locked"]
packages = json.loads(subprocess.check_output(command))["packages"]
found = [(package, problem) for package in packages for problem in problems(package)]
for package, problem in found:
    print(f"{package['name']} {package['version']}: {problem}", file=sys.stderr)
print(f"{len(packages)} packages looked at, {len(found)} problems")
sys.exit(1 if found else 0)
