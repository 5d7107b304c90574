#!/usr/bin/env bash
# kustomize 5.8.1 (kubectl kustomize 1.37.2, too): a folded scalar (>-) with deeper indented lines is built with another value.
#
# YAML keeps the line breaks around lines that are indented more than the first one. In what kustomize builds, one line break before
# such lines is two: an empty line more. A PromQL rule still means the same; a script, a certificate or whatever is compared or
# signed does not. A literal scalar (|-) keeps its value.
#
# Installs kustomize with Go and pyyaml in a temporary folder, and compares the value before and after. Exit code 0: as described.
#
# Output seen on 2026-11-29 with kustomize v5.8.1:
#   value before: 'a > b * (\n  c\n  or d\n)'
#   value after:  'a > b * (\n\n  c\n  or d\n)'
set -euo pipefail
VERSION=v5.8.1
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
export GOPATH="$work/go" GOBIN="$work/bin" GOFLAGS=-modcacherw GOTOOLCHAIN=auto
go install "sigs.k8s.io/kustomize/kustomize/v5@$VERSION" 2> install.log || { tail -5 install.log; exit 2; }
python3 -m venv venv && venv/bin/pip install -q pyyaml==6.0.2
cat > rule.yaml <<'YAML'
apiVersion: v1
kind: ConfigMap
metadata: {name: rule}
data:
  expr: >-
    a
    > b * (
      c
      or d
    )
  literal: |-
    a > b * (
      c
    )
YAML
echo 'resources: [rule.yaml]' > kustomization.yaml
bin/kustomize build . > built.yaml
venv/bin/python - "$VERSION" <<'PY'
import sys, yaml
source, built = (yaml.safe_load(open(name))["data"] for name in ("rule.yaml", "built.yaml"))
before, after = source["expr"], built["expr"]
assert source["literal"] == built["literal"]
print("kustomize", sys.argv[1], "prints")
print(open("built.yaml").read())
print("value before:", repr(before))
print("value after: ", repr(after))
if before == after:
    sys.exit("the value is the same now: this has changed")
PY
