"""Align mode as a library: geometry, the chunk cut, what it leaves in the cache, and what to say about it.

Pure Python, standard library only: `check`, `plan`, the simulator and the vLLM plugin all call it.

    make_setup(command line)      -> Setup: model, flags, geometry, budget, frame
    resolve_geometry(...)         -> Geometry: every group's block, the units, bytes of a state
    frame_of(geometry, budget)    -> Frame: all that a chunk rule may know
    make_rule("exact", frame)     -> Rule: .cut(Prefill(prompt, known, junction), start, offer) -> tokens
    World(frame, groups, rule)    -> the oracle: slots, what each holds, publication, lookup
    make_plan(...), find(setup)   -> plans and findings
"""

from statemark.align.budget import Budget, resolve_budget
from statemark.align.configuration import Setup, make_setup
from statemark.align.families import read_model
from statemark.align.findings import Finding, Level, find
from statemark.align.flags import ServeFlags, parse_serve_flags
from statemark.align.frame import Frame, frame_of, uniform_frame
from statemark.align.geometry import Geometry
from statemark.align.groups import Group, Role, state_grid
from statemark.align.oracle import CacheGroup, Job, Prompt, World, groups_of
from statemark.align.planner import Plan, make_plan, make_prompts
from statemark.align.positions import Kept, Prefill
from statemark.align.resolve import resolve_geometry
from statemark.align.rules import RULES, Rule, make_rule

__all__ = [
    "RULES",
    "Budget",
    "CacheGroup",
    "Finding",
    "Frame",
    "Geometry",
    "Group",
    "Job",
    "Kept",
    "Level",
    "Plan",
    "Prefill",
    "Prompt",
    "Role",
    "Rule",
    "ServeFlags",
    "Setup",
    "World",
    "find",
    "frame_of",
    "groups_of",
    "make_plan",
    "make_prompts",
    "make_rule",
    "make_setup",
    "parse_serve_flags",
    "read_model",
    "resolve_budget",
    "resolve_geometry",
    "state_grid",
    "uniform_frame",
]
