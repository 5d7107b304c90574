"""Words that this repository does not use, and the files that still have some of them.

Owns the list of words, the count of their occurrences in a file, and the number that each file is allowed today.
`tests/test_house.py` compares. After words are removed from a file, `python -m tests.house_words` lowers its number.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# May only grow. Processes, pods, trees, callers and operators act here, not persons, and they do so in plain verbs.
BANNED = frozenset(
    """
    anybody deed deeds doom doomed everybody foresee foreseen foresight he hear heard hears heed him himself his hurry
    lodging nobody nudge oddities oddity outrank outranked outranks said say saying says she somebody squeezed taker
    takers tell telling tells told untold whoever
    """.split()  # noqa: SIM905 -- read as a list of words
)
BANNED_PHRASES = ("goes for", "on their way out", "on its way out")  # may only grow

# Files that are not counted, for good. A folder ends in "/".
EXEMPT = {
    "tests/house_words.py": "holds the list itself",
    "tests/golden/": "recorded from the product, and texts of other repositories",
}
SUFFIXES = (".py", ".md", ".sql", ".yaml", ".toml")
OTHER_FILES = ("Makefile", ".ci/run")

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # the parts of snake_case and CamelCase too
_PHRASE = re.compile("|".join(r"\s+".join(phrase.split()) for phrase in BANNED_PHRASES))


def files() -> list[str]:
    """Return the tracked files whose words are counted, by their path below the repository."""
    listed = subprocess.run(
        # the checkout of a CI machine may belong to another user
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    return [
        name
        for name in listed.split("\0")
        if (name.endswith(SUFFIXES) or name in OTHER_FILES)
        and not name.startswith(tuple(EXEMPT))
        and (ROOT / name).is_file()
    ]


def banned_words(text: str) -> Iterator[str]:
    """Yield each occurrence of a banned word or phrase, in lower case; parts of identifiers are words.

    >>> list(banned_words("WhoeverAsks was_told _said HEED_MAX, not toldness, essay, the This; it goes for"))
    ['whoever', 'told', 'said', 'heed', 'goes for']
    """
    for word in _WORD.findall(text):
        if word.lower() in BANNED:
            yield word.lower()
    yield from _PHRASE.findall(text.lower())


def occurrences() -> dict[str, list[str]]:
    """Return the banned words of each file that has some."""
    found = {name: list(banned_words((ROOT / name).read_text())) for name in files()}
    return {name: words for name, words in found.items() if words}


def main() -> None:
    """Lower the numbers of `ALLOWED` to what the files have now; a number is never raised, a file never added."""
    counted = {name: len(words) for name, words in occurrences().items()}
    lines = [
        f'    "{name}": {min(number, counted[name])},'
        for name, number in sorted(ALLOWED.items())
        if name in counted
    ]
    path = Path(__file__)
    before, marker, rest = path.read_text().partition("\nALLOWED: dict[str, int] = {\n")
    after = rest.partition("}\n")[2]
    path.write_text(before + marker + "".join(f"{line}\n" for line in lines) + "}\n" + after)
    print(f"{sum(map(len, occurrences().values()))} occurrences left in {len(lines)} files")


# How many occurrences a file may have today. May only shrink: the number of a file is exact, and no file is added.
ALLOWED: dict[str, int] = {
    "README.md": 6,
    "deploy/QUESTIONS.md": 5,
    "deploy/README.md": 40,
    "deploy/compose/demo.py": 2,
    "deploy/compose/setup.py": 1,
    "deploy/demo/play.py": 7,
    "deploy/kubernetes/admission-policy.yaml": 1,
    "deploy/kubernetes/deployment.yaml": 1,
    "deploy/kubernetes/flowschema.yaml": 1,
    "deploy/kubernetes/namespace.yaml": 1,
    "deploy/kubernetes/rbac.yaml": 3,
    "deploy/kubernetes/scopes/contended-resource.yaml": 1,
    "deploy/kubernetes/second-scheduler/network-policy.yaml": 1,
    "deploy/kubernetes/second-scheduler/pool-policy.yaml": 2,
    "deploy/kubernetes/second-scheduler/scheduler.yaml": 1,
    "deploy/postgres/ownership.sql": 1,
    "docs/asking.md": 14,
    "docs/glossary.md": 2,
    "extender/README.md": 59,
    "extender/cli/commands/events_follow.py": 6,
    "extender/cli/commands/gang_commands.py": 2,
    "extender/cli/commands/history_commands.py": 22,
    "extender/cli/commands/plan_command.py": 4,
    "extender/cli/commands/preemptions_command.py": 4,
    "extender/cli/commands/prune_command.py": 1,
    "extender/cli/commands/report_command.py": 8,
    "extender/cli/commands/state_commands.py": 5,
    "extender/cli/main.py": 6,
    "extender/cli/output/printing.py": 1,
    "extender/cli/output/sse_client.py": 3,
    "extender/cluster/api_server/api_discovery.py": 2,
    "extender/cluster/api_server/feature_gate_reader.py": 3,
    "extender/cluster/api_server/informers.py": 15,
    "extender/cluster/api_server/kubernetes_cluster.py": 9,
    "extender/cluster/connection/api_client.py": 8,
    "extender/cluster/crd/crd_group_types.py": 1,
    "extender/cluster/crd/crd_workload_types.py": 1,
    "extender/cluster/crd/render_crds.py": 1,
    "extender/cluster/manifests/journal.py": 4,
    "extender/cluster/manifests/journal_overlay.py": 21,
    "extender/cluster/manifests/manifest_cluster.py": 15,
    "extender/cluster/manifests/manifest_loader.py": 5,
    "extender/cluster/manifests/manifest_validation.py": 2,
    "extender/cluster/manifests/plan_request_body.py": 3,
    "extender/cluster/manifests/yaml_reader.py": 3,
    "extender/cluster/read/disruption_budget_conversion.py": 2,
    "extender/cluster/read/dropped_group_fields.py": 5,
    "extender/cluster/read/interpod_terms.py": 3,
    "extender/cluster/read/object_decoding.py": 9,
    "extender/cluster/read/object_store.py": 19,
    "extender/cluster/read/pod_conversion.py": 18,
    "extender/cluster/read/priority_classes.py": 2,
    "extender/cluster/types/node_types.py": 1,
    "extender/cluster/write/event_recorder.py": 29,
    "extender/cluster/write/finalizer_writer.py": 1,
    "extender/cluster/write/group_status.py": 8,
    "extender/cluster/write/log_head_configmap.py": 3,
    "extender/cluster/write/pod_evictions.py": 5,
    "extender/cluster/write/pod_writer.py": 3,
    "extender/composition.py": 4,
    "extender/control/actuators/evictor.py": 43,
    "extender/control/actuators/finalizer_controller.py": 2,
    "extender/control/actuators/nominator.py": 10,
    "extender/control/actuators/status_reporter.py": 45,
    "extender/control/binding/bind_barrier.py": 16,
    "extender/control/binding/prebind_tracker.py": 12,
    "extender/control/log/append_batch.py": 1,
    "extender/control/log/follower.py": 7,
    "extender/control/log/history_guard.py": 11,
    "extender/control/log/leader.py": 19,
    "extender/control/log/lease.py": 4,
    "extender/control/loop/control_loop.py": 36,
    "extender/control/loop/idle_pass_filter.py": 5,
    "extender/control/loop/overcommit_warnings.py": 12,
    "extender/control/loop/planner_pool.py": 2,
    "extender/control/loop/preemption_policy.py": 22,
    "extender/control/loop/termination_reasons.py": 10,
    "extender/control/monitors/feature_gate_monitor.py": 2,
    "extender/control/monitors/read_model_projector.py": 10,
    "extender/control/monitors/state_verifier.py": 2,
    "extender/control/verbs/extender_service.py": 11,
    "extender/core/decisions/admit/gate_removal_order.py": 8,
    "extender/core/decisions/admit/interpod_rules.py": 3,
    "extender/core/decisions/admit/native_gang_scheduling.py": 7,
    "extender/core/decisions/admit/node_rejections.py": 12,
    "extender/core/decisions/admit/plan_request.py": 4,
    "extender/core/decisions/admit/readmission_backoff.py": 5,
    "extender/core/decisions/admit/tree_warnings.py": 12,
    "extender/core/decisions/admit/unschedulable_cache.py": 4,
    "extender/core/decisions/admit/verdict_events.py": 12,
    "extender/core/decisions/capacity/capacity_claims.py": 12,
    "extender/core/decisions/capacity/free_capacity.py": 3,
    "extender/core/decisions/capacity/largest_free_domain.py": 5,
    "extender/core/decisions/capacity/oversubscription.py": 1,
    "extender/core/decisions/capacity/replacement_holds.py": 13,
    "extender/core/decisions/preempt/disruption_units.py": 12,
    "extender/core/decisions/preempt/preemption_lifecycle.py": 25,
    "extender/core/decisions/preempt/preemption_planning.py": 9,
    "extender/core/decisions/preempt/preemption_takeover.py": 25,
    "extender/core/decisions/preempt/unbound_gang_members.py": 3,
    "extender/core/decisions/reconcile/cluster_reconciliation.py": 22,
    "extender/core/decisions/reconcile/drift.py": 9,
    "extender/core/decisions/reconcile/finalizer_rules.py": 3,
    "extender/core/decisions/reconcile/overcommit_attribution.py": 20,
    "extender/core/decisions/reconcile/predicted_replacements.py": 6,
    "extender/core/decisions/reconcile/reservation_checks.py": 4,
    "extender/core/decisions/verbs/filter_and_prioritize.py": 13,
    "extender/core/decisions/verbs/preempt_verb.py": 4,
    "extender/core/decisions/verbs/preempt_verb_input.py": 1,
    "extender/core/log/control_plane_features.py": 14,
    "extender/core/log/events.py": 22,
    "extender/core/log/preemption_state.py": 5,
    "extender/core/log/reservation_state.py": 7,
    "extender/core/model/cluster_view.py": 2,
    "extender/core/model/disruption_budgets.py": 3,
    "extender/core/model/dropped_fields.py": 1,
    "extender/core/model/errors.py": 4,
    "extender/core/model/object_identity.py": 1,
    "extender/core/model/pod_groups.py": 3,
    "extender/core/model/pods.py": 18,
    "extender/core/planner/codec/content_defined_chunks.py": 1,
    "extender/core/planner/codec/request_codec.py": 2,
    "extender/core/planner/codec/victim_codec.py": 5,
    "extender/core/planner/explain/best_partial_placement.py": 7,
    "extender/core/planner/explain/minimal_conflict.py": 4,
    "extender/core/planner/explain/plan_builder.py": 2,
    "extender/core/planner/explain/shortfalls.py": 5,
    "extender/core/planner/model/feasibility.py": 6,
    "extender/core/planner/model/interpod_constraints.py": 5,
    "extender/core/planner/model/node_filters.py": 6,
    "extender/core/planner/model/node_table.py": 1,
    "extender/core/planner/model/problem.py": 3,
    "extender/core/planner/model/upper_bounds.py": 1,
    "extender/core/planner/plan_types.py": 2,
    "extender/core/planner/planning.py": 6,
    "extender/core/planner/preempt/min_cost_cp_sat.py": 4,
    "extender/core/planner/preempt/post_eviction_view.py": 5,
    "extender/core/planner/preempt/reprieve.py": 8,
    "extender/core/planner/preempt/victim_cost.py": 10,
    "extender/core/planner/preempt/victim_search.py": 35,
    "extender/core/planner/preemption_types.py": 7,
    "extender/core/planner/solve/cp_sat_placement.py": 8,
    "extender/core/planner/solve/extra_members.py": 1,
    "extender/core/planner/solve/greedy_placement.py": 1,
    "extender/core/planner/solve/solver_pipeline.py": 1,
    "extender/http/responses/json_responses.py": 3,
    "extender/http/scheduler/leader_proxy.py": 13,
    "extender/http/scheduler/verb_handlers.py": 1,
    "extender/http/scheduler/wire.py": 1,
    "extender/http/v1/event_api.py": 9,
    "extender/http/v1/gang_api.py": 1,
    "extender/http/v1/history_api.py": 16,
    "extender/http/v1/openapi.py": 3,
    "extender/http/v1/openapi_route.py": 1,
    "extender/http/v1/plan_api.py": 1,
    "extender/http/v1/report_api.py": 5,
    "extender/http/v1/state_api.py": 12,
    "extender/http/web/health.py": 4,
    "extender/http/web/query_process.py": 4,
    "extender/ports/protocols.py": 13,
    "extender/queries/log/decision_details.py": 2,
    "extender/queries/log/decision_replay.py": 1,
    "extender/queries/log/event_dto.py": 4,
    "extender/queries/log/event_filter.py": 1,
    "extender/queries/log/event_stream.py": 13,
    "extender/queries/log/gang_history.py": 11,
    "extender/queries/log/parameter_validation.py": 1,
    "extender/queries/log/preemption_report.py": 12,
    "extender/queries/log/reports.py": 8,
    "extender/queries/plan/live_snapshot.py": 1,
    "extender/queries/plan/plan_query.py": 9,
    "extender/queries/plan/plan_service.py": 3,
    "extender/queries/state/historical_state.py": 10,
    "extender/queries/state/node_inventory.py": 3,
    "extender/queries/state/state_dto.py": 1,
    "extender/queries/state/state_report.py": 5,
    "extender/runtime/cooperative_yield.py": 3,
    "extender/runtime/wakeup.py": 1,
    "extender/runtime/worker_process.py": 1,
    "extender/settings.py": 3,
    "extender/snapshots/snapshot_writer.py": 1,
    "extender/store/database_roles.py": 1,
    "extender/store/decision_inputs.py": 3,
    "extender/store/embedded/embedded_server.py": 42,
    "extender/store/embedded/os_account.py": 10,
    "extender/store/embedded/postgres_binaries.py": 11,
    "extender/store/embedded/server_process.py": 19,
    "extender/store/engine.py": 1,
    "extender/store/interval_projection.py": 2,
    "extender/store/log/appender.py": 6,
    "extender/store/log/log_reader.py": 1,
    "extender/store/log/postgres_event_log.py": 3,
    "extender/store/log/upcasters.py": 12,
    "extender/store/queries/event_queries.py": 5,
    "extender/store/queries/report_queries.py": 2,
    "extender/store/retention.py": 4,
    "extender/store/schema_migration.py": 2,
    "extender/store/tables.py": 4,
    "extender/telemetry.py": 1,
    "migrations/env.py": 2,
    "migrations/sql/0001/evict.sql": 2,
    "migrations/sql/0001/refuse_change.sql": 1,
    "migrations/sql/0001/release.sql": 1,
    "migrations/sql/0001/take.sql": 1,
    "migrations/sql/0002/take.sql": 2,
    "migrations/sql/0003/expect_head.sql": 1,
    "migrations/sql/0004/comments.sql": 9,
    "migrations/sql/0004/grants.sql": 1,
    "migrations/sql/0004/project.sql": 2,
    "migrations/sql/0004/project_end.sql": 1,
    "migrations/sql/0004/project_fact.sql": 1,
    "migrations/sql/0004/project_preemption.sql": 1,
    "migrations/sql/0004/project_root.sql": 1,
    "migrations/sql/0005/comments.sql": 11,
    "migrations/sql/0006/note_mentions.sql": 1,
    "migrations/sql/0007/project_fact.sql": 1,
    "migrations/sql/0007/project_kept.sql": 1,
    "migrations/sql/0009/project_end.sql": 1,
    "migrations/sql/0009/project_preemption.sql": 1,
    "migrations/sql/0010/v_room_taken.sql": 1,
    "migrations/versions/0002_raise_epoch.py": 1,
    "migrations/versions/0005_create_reports.py": 3,
    "migrations/versions/0008_describe_causes_of_losses.py": 6,
    "migrations/versions/0009_project_large_gangs.py": 2,
    "migrations/versions/0010_tell_room_taken_cheaply.py": 1,
    "pyproject.toml": 1,
    "tests/acceptance/test_event_stream_failover.py": 3,
    "tests/acceptance/test_history_lost.py": 22,
    "tests/acceptance/test_openapi_conformance.py": 20,
    "tests/acceptance/test_preemption_kills.py": 4,
    "tests/acceptance/test_process_kills.py": 4,
    "tests/acceptance/test_standby.py": 4,
    "tests/acceptance/test_ui.py": 21,
    "tests/bench/HELPED.md": 15,
    "tests/bench/RESULTS.md": 43,
    "tests/bench/__main__.py": 1,
    "tests/bench/asof.py": 2,
    "tests/bench/audit.py": 2,
    "tests/bench/figures.py": 3,
    "tests/bench/freed.py": 4,
    "tests/bench/gang.py": 1,
    "tests/bench/history.py": 1,
    "tests/bench/latency.py": 7,
    "tests/bench/preemption.py": 10,
    "tests/bench/race.py": 12,
    "tests/bench/record.py": 2,
    "tests/bench/sides.py": 4,
    "tests/bench/stand.py": 7,
    "tests/bench/store.py": 5,
    "tests/bench/storms.py": 18,
    "tests/bench/test_record.py": 7,
    "tests/bench/verbs.py": 1,
    "tests/bench/weight.py": 2,
    "tests/controlplane/api.py": 2,
    "tests/controlplane/build.py": 10,
    "tests/controlplane/kubelet.py": 3,
    "tests/controlplane/livedin.py": 8,
    "tests/controlplane/pin.py": 1,
    "tests/controlplane/plane.py": 2,
    "tests/controlplane/processes.py": 2,
    "tests/e2e/EXPERIMENTS.md": 10,
    "tests/e2e/conftest.py": 2,
    "tests/e2e/recorder.py": 2,
    "tests/e2e/scenarios/aftermath.py": 5,
    "tests/e2e/scenarios/conftest.py": 6,
    "tests/e2e/scenarios/intercept.py": 1,
    "tests/e2e/scenarios/replicas.py": 3,
    "tests/e2e/scenarios/service.py": 4,
    "tests/e2e/scenarios/test_autoscalers.py": 7,
    "tests/e2e/scenarios/test_barrier.py": 13,
    "tests/e2e/scenarios/test_broken_trees.py": 22,
    "tests/e2e/scenarios/test_committed_before_bind.py": 1,
    "tests/e2e/scenarios/test_definitions.py": 10,
    "tests/e2e/scenarios/test_deleted_objects.py": 4,
    "tests/e2e/scenarios/test_dependencies.py": 5,
    "tests/e2e/scenarios/test_deposed_leader.py": 6,
    "tests/e2e/scenarios/test_devices_and_volumes.py": 4,
    "tests/e2e/scenarios/test_drift.py": 19,
    "tests/e2e/scenarios/test_features.py": 7,
    "tests/e2e/scenarios/test_gangs.py": 12,
    "tests/e2e/scenarios/test_history.py": 13,
    "tests/e2e/scenarios/test_losses.py": 4,
    "tests/e2e/scenarios/test_node_rejections.py": 4,
    "tests/e2e/scenarios/test_ordinary_pods.py": 6,
    "tests/e2e/scenarios/test_other_schedulers.py": 6,
    "tests/e2e/scenarios/test_outages.py": 7,
    "tests/e2e/scenarios/test_populated_cluster.py": 2,
    "tests/e2e/scenarios/test_preemption.py": 22,
    "tests/e2e/scenarios/test_preemption_status.py": 16,
    "tests/e2e/scenarios/test_preemption_vectors.py": 22,
    "tests/e2e/scenarios/test_promotion.py": 6,
    "tests/e2e/scenarios/test_second_scheduler.py": 6,
    "tests/e2e/scenarios/test_standby.py": 16,
    "tests/e2e/scenarios/test_storms.py": 14,
    "tests/e2e/test_benches.py": 1,
    "tests/e2e/test_cluster_adapter.py": 8,
    "tests/e2e/test_experiments.py": 9,
    "tests/e2e/test_experiments_api.py": 3,
    "tests/e2e/test_experiments_native.py": 6,
    "tests/e2e/test_manifests.py": 2,
    "tests/e2e/test_smoke.py": 1,
    "tests/integration/cluster/fake_api.py": 8,
    "tests/integration/cluster/test_feature_gate_reader.py": 9,
    "tests/integration/cluster/test_informers.py": 5,
    "tests/integration/cluster/test_kubernetes_writes.py": 18,
    "tests/integration/http/test_decision_api.py": 3,
    "tests/integration/http/test_gang_api.py": 3,
    "tests/integration/http/test_leader_proxy.py": 10,
    "tests/integration/http/test_node_api.py": 6,
    "tests/integration/http/test_query_process.py": 11,
    "tests/integration/http/test_report_api.py": 7,
    "tests/integration/http/test_scheduler_verbs.py": 13,
    "tests/integration/http/test_state_api.py": 5,
    "tests/integration/http/test_static_pages.py": 3,
    "tests/integration/store/test_append_only.py": 3,
    "tests/integration/store/test_audit_questions.py": 1,
    "tests/integration/store/test_database_roles.py": 2,
    "tests/integration/store/test_embedded.py": 8,
    "tests/integration/store/test_interval_projection.py": 6,
    "tests/integration/store/test_reference_index.py": 1,
    "tests/integration/store/test_report_queries.py": 14,
    "tests/integration/store/test_retention.py": 3,
    "tests/integration/store/test_state_command.py": 5,
    "tests/integration/store/test_unknown_outcome.py": 5,
    "tests/integration/test_commands.py": 7,
    "tests/integration/test_name_queries.py": 26,
    "tests/migration/test_schema.py": 2,
    "tests/support/logs/random_logs.py": 2,
    "tests/support/logs/reference_reports.py": 14,
    "tests/support/planning/preemption_checker.py": 1,
    "tests/support/planning/random_trees.py": 3,
    "tests/support/service/fakes.py": 6,
    "tests/support/service/job_arrivals.py": 1,
    "tests/unit/control/actuators/test_evictor.py": 5,
    "tests/unit/control/actuators/test_status_reporter.py": 2,
    "tests/unit/control/loop/test_preemption_policy.py": 19,
    "tests/unit/control/loop/test_preemption_takeover.py": 13,
    "tests/unit/control/loop/test_preemption_thrash.py": 1,
    "tests/unit/core/decisions/admit/test_rejection_evidence.py": 1,
    "tests/unit/core/decisions/admit/test_tree_warnings.py": 4,
    "tests/unit/core/decisions/capacity/test_replacement_holds.py": 1,
    "tests/unit/core/decisions/preempt/test_disruption_units.py": 1,
    "tests/unit/core/decisions/preempt/test_preemption_takeover.py": 9,
    "tests/unit/core/decisions/reconcile/test_cluster_reconciliation.py": 5,
    "tests/unit/core/decisions/reconcile/test_overcommit_attribution.py": 6,
    "tests/unit/core/log/test_control_plane_features.py": 3,
    "tests/unit/queries/log/test_preemption_report.py": 4,
    "tests/unit/test_lazy_commands.py": 1,
}

if __name__ == "__main__":
    main()
