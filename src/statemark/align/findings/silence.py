"""Findings about settings that do nothing, or something else than they say, without a word at start-up."""

from __future__ import annotations

from statemark.align.configuration import Setup
from statemark.align.findings.kind import Finding, Level
from statemark.align.platforms import Kind


def gone(setup: Setup) -> Finding | None:
    since = setup.shape.gone_since
    if since is None:
        return None
    return Finding(
        code="architecture-gone",
        level=Level.ERROR,
        sentence=f"vLLM has not served {setup.shape.architecture} since {since}; what follows is by the older rules.",
        remedy="an older vLLM, or another model",
        numbers={"since": since},
    )


def cache_off(setup: Setup) -> Finding | None:
    if setup.geometry.caching:
        return None
    forced = setup.machine.kind is Kind.CPU and setup.shape.attention.latent
    return Finding(
        code="cache-off",
        level=Level.WARNING if forced and setup.flags.prefix_caching is not False else Level.INFO,
        sentence=(
            "vLLM turns the prefix cache off for latent (MLA) attention on CPUs, whatever the flags say."
            if forced
            else "The prefix cache is off: nothing below about hits applies."
        ),
        remedy="a GPU" if forced else "remove --no-enable-prefix-caching",
    )


def ignored_flags(setup: Setup) -> Finding | None:
    """Flags that were given and have no effect in align mode."""
    flags, ignored = setup.flags, []
    if setup.geometry.caching:
        if flags.mamba_cache_mode == "none":
            ignored.append("--mamba-cache-mode none (becomes align while the prefix cache is on)")
        if flags.mamba_block_size is not None:
            ignored.append(f"--mamba-block-size {flags.mamba_block_size} (the grid is {setup.frame.grid})")
        if flags.block_size is not None and flags.block_size != setup.frame.config_minimum.tokens:
            ignored.append(f"--block-size {flags.block_size} as a size (it only sets the step: {setup.frame.grid})")
        wants_junction = flags.junction_checkpoint and not setup.frame.junction_checkpoint
        if wants_junction:
            ignored.append("--enable-mamba-shared-prefix-checkpoint (needs a drafter and a match unit below the grid)")
    if not ignored:
        return None
    return Finding(
        code="ignored-flags",
        level=Level.WARNING,
        sentence=f"Without effect: {'; '.join(ignored)}.",
        remedy="remove them",
        numbers={"flags": len(ignored)},
    )
