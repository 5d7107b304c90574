"""`serve` and `migrate`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from extender import settings as settings_module
from extender.core.errors import BadInput


def serve(  # noqa: PLR0917 -- typer reads options from the signature
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            help="Manifests (file or folder) to use as the cluster instead of the Kubernetes API. Repeatable.",
        ),
    ] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT to answer on.")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="postgresql://… ; unset: an embedded PostgreSQL.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder for the embedded server.")] = None,
    holder: Annotated[str | None, typer.Option(help="Name of this replica in the lease.")] = None,
    kubeconfig: Annotated[
        str | None, typer.Option(help="Else KUBECONFIG, else in-cluster.")
    ] = None,
    barrier_timeout_s: Annotated[
        float | None, typer.Option(help="How long bind waits for the whole minimum.")
    ] = None,
    bind_timeout_s: Annotated[
        float | None, typer.Option(help="httpTimeout of the bind entry in the scheduler's file.")
    ] = None,
    lease_ttl_s: Annotated[float | None, typer.Option(help="Life of the lease.")] = None,
    plan_budget: Annotated[int | None, typer.Option(help="Search nodes per plan.")] = None,
    reservation_ttl_s: Annotated[
        int | None, typer.Option(help="Life of a reservation that nobody redeems.")
    ] = None,
    preemption: Annotated[
        str | None, typer.Option(help="on or off: whether running pods may be evicted for a tree.")
    ] = None,
    eviction: Annotated[
        str | None,
        typer.Option(
            help="delete, as kube-scheduler does, or evict: the Eviction API, PDB strict."
        ),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Run the service that kube-scheduler calls. Every option is also GANG_EXTENDER_<OPTION> in the environment."""
    settings = settings_module.load(
        cluster=tuple(cluster or ()),
        listen=listen,
        database_url=database_url,
        data_dir=data_dir,
        holder=holder,
        kubeconfig=kubeconfig,
        barrier_timeout_s=barrier_timeout_s,
        bind_timeout_s=bind_timeout_s,
        lease_ttl_s=lease_ttl_s,
        plan_budget=plan_budget,
        reservation_ttl_s=reservation_ttl_s,
        preemption=preemption,
        eviction=eviction,
        log_level=log_level,
    )
    import uvloop

    from extender.telemetry import set_up_logging
    from extender.wiring import serve as run_service

    set_up_logging(settings.log_level, sys.stdout)
    try:
        uvloop.run(run_service(settings, lambda: None))
    except OSError as error:
        msg = (
            f"cannot listen on {settings.listen}: {error.strerror or error}; set --listen HOST:PORT"
        )
        raise BadInput(msg) from error


def migrate(
    database_url: Annotated[
        str | None, typer.Option(help="postgresql://… ; unset: the embedded PostgreSQL.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder for the embedded server.")] = None,
) -> None:
    """Bring the database to the schema of this version."""
    from extender.store import (
        migrate as migrations,
    )  # the one adapter a command names: it owns the schema
    from extender.wiring import database

    settings = settings_module.load(database_url=database_url, data_dir=data_dir)

    async def run() -> str:
        async with database(settings) as url:
            return await migrations.upgrade(url)

    print(f"the database has schema {asyncio.run(run())}")
